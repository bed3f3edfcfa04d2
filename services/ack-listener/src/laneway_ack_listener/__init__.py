"""Laneway's ack-listener: device answers on MQTT become results on RabbitMQ."""
