"""Laneway on one machine: private RabbitMQ, PostgreSQL and Mosquitto, and Laneway's services, on free ports.

`stack.Stack` is the interface for the command line, for the demo and for the tests.
"""
