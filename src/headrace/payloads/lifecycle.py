"""Lifecycle rules: a second net under Headrace's own deletion, which the object store itself holds.

A rule is always longer than Headrace keeps a segment, counted from when it was written: longer than the longest delay
and ``least_days`` together. What lives longer is copied, while workers run; for the time in which none runs, a rule is
better longer than the retention of dead letters, too. Obstore has no lifecycle calls. S3's are made through boto3; for
Google Cloud and Azure there is the plan, in the form that their own tools take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.core.config import ObjectSettings
from headrace.core.durations import micros
from headrace.errors import ConfigError, ObjectsRefused, ObjectsUnavailable
from headrace.payloads.object_url import Location
from headrace.payloads.reference import FOLDER

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError, ClientError

T = TypeVar("T")

_ID = "headrace"
_OLD_VERSIONS = 7
"""Days: in a bucket with versions, for how long a deleted segment can be restored."""
_FROZEN = {"GLACIER", "DEEP_ARCHIVE"}
"""Storage classes that cannot be read at once."""
_COOLER = "STANDARD_IA"
_COOLER_EARLY = "GLACIER_IR"
"""For what is moved within a month, which S3 refuses for the other. It is read at once, too."""
_MONTH = 30
_DAY = 86_400_000_000
_TOOLS = {
    "gs": "gcloud storage buckets update gs://{bucket} --lifecycle-file=plan.json",
    "az": "az storage account management-policy create --policy @plan.json",
}
_CODES_OF_REFUSAL = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "NotImplemented"}


def plan(location: Location, days: int, cooler_after: int | None = None) -> dict[str, Any]:
    """The rule as the object store takes it: segments end this many days after they were written, and after fewer days
    move to where storing costs less and reading more.

    >>> from headrace.payloads.object_url import parse
    >>> plan(parse("gs://jobs/prod"), 60)
    {'rule': [{'action': {'type': 'Delete'}, 'condition': {'age': 60, 'matchesPrefix': ['prod/segments/']}}]}
    """
    if days < 1:
        raise ConfigError(f"days: expected at least 1, got {days}")
    if cooler_after is not None and not 1 <= cooler_after < days:
        raise ConfigError(f"cooler_after: expected 1 to {days - 1} days, got {cooler_after}")
    prefix = _prefix(location)
    match location.scheme:
        case "s3":
            return {"Rules": [_rule(prefix, days, cooler_after)]}
        case "gs":
            ends = {"action": {"type": "Delete"}, "condition": {"age": days, "matchesPrefix": [prefix]}}
            if cooler_after is None:
                return {"rule": [ends]}
            cools = {"type": "SetStorageClass", "storageClass": "NEARLINE"}
            return {"rule": [{"action": cools, "condition": {"age": cooler_after, "matchesPrefix": [prefix]}}, ends]}
        case "az":
            blob = {"delete": {"daysAfterModificationGreaterThan": days}}
            if cooler_after is not None:
                blob["tierToCool"] = {"daysAfterModificationGreaterThan": cooler_after}
            actions = {"baseBlob": blob}
            filters = {"blobTypes": ["blockBlob"], "prefixMatch": [f"{location.bucket}/{prefix}"]}
            definition = {"actions": actions, "filters": filters}
            return {"rules": [{"enabled": True, "name": _ID, "type": "Lifecycle", "definition": definition}]}
        case _:
            raise ConfigError(f"object store {location.where}: expected a bucket; a {location.scheme} has no lifecycle")


def least_days(settings: ObjectSettings) -> int:
    """For how many days after its jobs are due a segment is needed at most: until it was copied, and nobody may still
    load from it. It may lie in the last hour of its day.

    >>> least_days(ObjectSettings())
    3
    """
    needed = _DAY + micros(settings.keep) + micros(settings.grace) + 2 * micros(settings.every)
    return -(-needed // _DAY)


async def apply(location: Location, days: int, cooler_after: int | None = None) -> None:
    """Set our rule on an S3 bucket. Other rules stay; of two who change rules at once, the later one wins."""
    wanted = _plan_of_s3(location, days, cooler_after)
    ours = _rule_id(_prefix(location))

    def call(client: Any) -> None:
        others = [rule for rule in _rules(client, location) if rule.get("ID") != ours]
        client.put_bucket_lifecycle_configuration(
            Bucket=location.bucket, LifecycleConfiguration={"Rules": others + wanted}
        )

    await _through_boto3(location, call)


async def check(location: Location, days: int) -> list[str]:
    """What is wrong with the rules of an S3 bucket; empty: nothing."""
    prefix = _plan_of_s3(location, days)[0]["Filter"]["Prefix"]
    rules = await _through_boto3(location, lambda client: _rules(client, location))
    found = []
    enabled = [rule for rule in rules if rule.get("Status") == "Enabled" and _overlap(_prefix_of(rule), prefix)]
    if not any(prefix.startswith(_prefix_of(rule)) and _days(rule) for rule in enabled):
        found.append(f"no rule ends segments: expected one for {prefix} after {days} days; apply the plan")
    for rule in enabled:
        name = f"rule {rule.get('ID', '')!r} for {_prefix_of(rule)!r}"
        if 0 < _days(rule) < days:
            found.append(f"{name} ends segments after {_days(rule)} days, expected {days} or more; lengthen it")
        for move in rule.get("Transitions", ()):
            if move.get("StorageClass") in _FROZEN:
                found.append(f"{name} moves segments to {move['StorageClass']}, where they cannot be read; remove that")
    return found


def _plan_of_s3(location: Location, days: int, cooler_after: int | None = None) -> list[dict[str, Any]]:
    wanted = plan(location, days, cooler_after)
    if tool := _TOOLS.get(location.scheme):
        how = tool.format(bucket=location.bucket)
        raise ConfigError(f"object store {location.where}: its rules cannot be reached from here; use: {how}")
    return list(wanted["Rules"])


def _rule(prefix: str, days: int, cooler_after: int | None) -> dict[str, Any]:
    cools = {}
    if cooler_after is not None:
        to = _COOLER if cooler_after >= _MONTH else _COOLER_EARLY
        cools = {"Transitions": [{"Days": cooler_after, "StorageClass": to}]}
    return cools | {
        "ID": _rule_id(prefix),
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "Expiration": {"Days": days},
        "NoncurrentVersionExpiration": {"NoncurrentDays": _OLD_VERSIONS},
    }


def _rule_id(prefix: str) -> str:
    return f"{_ID} {prefix}"


def _prefix(location: Location) -> str:
    return f"{location.prefix}/{FOLDER}/".removeprefix("/")


def _prefix_of(rule: dict[str, Any]) -> str:
    """What a rule applies to; one with tags or sizes in its filter may apply to all under its prefix."""
    filtered = rule.get("Filter", {})
    return str(filtered.get("And", filtered).get("Prefix", rule.get("Prefix", "")))


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _days(rule: dict[str, Any]) -> int:
    return int(rule.get("Expiration", {}).get("Days", 0))


def _rules(client: Any, location: Location) -> list[dict[str, Any]]:
    from botocore.exceptions import ClientError

    try:
        return list(client.get_bucket_lifecycle_configuration(Bucket=location.bucket).get("Rules", ()))
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchLifecycleConfiguration":
            raise
        return []


async def _through_boto3(location: Location, call: Callable[[Any], T]) -> T:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise ConfigError(
            f"lifecycle rules need boto3 ({error}); install: pip install 'headrace[objects-lifecycle]'"
        ) from error
    try:
        return await asyncio.to_thread(lambda: call(_client(location)))
    except (BotoCoreError, ClientError) as error:
        raise _translated(error, location) from None


def _client(location: Location) -> Any:
    import boto3
    from botocore.config import Config

    given = location.options
    return boto3.client(
        "s3",
        endpoint_url=given.get("endpoint"),
        region_name=given.get("region", "us-east-1"),
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token"),
        config=Config(connect_timeout=location.timeout, read_timeout=location.timeout, retries={"max_attempts": 0}),
    )


def _translated(error: BotoCoreError | ClientError, location: Location) -> ObjectsUnavailable:
    code = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
    if code in _CODES_OF_REFUSAL:
        return ObjectsRefused(
            f"object store {location.where}: refused its lifecycle rules ({code}); check the credentials and that they "
            "may get and put the lifecycle configuration of the bucket"
        )
    return ObjectsUnavailable(
        f"object store {location.where}: expected its lifecycle rules, got {code}; "
        "check that it runs and can be reached from here"
    )
