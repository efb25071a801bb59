"""Take orders."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from headrace.contrib.django import enqueue

from .models import Order
from .tasks import receipt


@csrf_exempt
@transaction.atomic
def order(request: HttpRequest) -> JsonResponse:
    """The order and its job are there together, or neither is."""
    made = Order.objects.create(email=request.POST["email"])
    job_id = enqueue(receipt, made.pk)
    if request.POST.get("fail"):
        raise RuntimeError("something went wrong afterwards")
    return JsonResponse({"order": made.pk, "job": str(job_id)})
