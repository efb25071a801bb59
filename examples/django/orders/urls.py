"""Where orders are taken, and the admin with the pages of Headrace."""

from django.contrib import admin
from django.urls import path

from .views import order

urlpatterns = [path("orders/", order), path("admin/", admin.site.urls)]
