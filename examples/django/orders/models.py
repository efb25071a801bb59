"""Orders."""

from django.db import models


class Order(models.Model):
    """Somebody wants something."""

    email = models.EmailField()
    receipts = models.IntegerField(default=0)
    """Sent so far."""
