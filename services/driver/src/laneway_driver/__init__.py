"""Laneway driver: takes commands from RabbitMQ, calls devices through an adapter, answers with results."""
