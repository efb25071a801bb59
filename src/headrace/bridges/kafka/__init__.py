"""Kafka: a topic into jobs, and what becomes of jobs into a topic. Nothing here knows a store."""

from headrace.bridges.kafka.record import Record
from headrace.bridges.kafka.sink import KafkaSink
from headrace.bridges.kafka.source import KafkaSource

__all__ = ["KafkaSink", "KafkaSource", "Record"]
