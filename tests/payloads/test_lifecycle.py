"""Lifecycle rules: planned, applied and checked."""

from __future__ import annotations

from typing import Any

import pytest
from servers.seaweedfs import SECRET_KEY

from headrace.core.config import ObjectSettings
from headrace.errors import ConfigError, ObjectsRefused, ObjectsUnavailable
from headrace.payloads import lifecycle
from headrace.payloads.object_url import Location, parse
from tests.objects import server


def test_the_plan_of_s3() -> None:
    [rule] = lifecycle.plan(parse("s3://jobs"), 60)["Rules"]
    assert (rule["ID"], rule["Filter"], rule["Expiration"]) == (
        "headrace segments/",
        {"Prefix": "segments/"},
        {"Days": 60},
    )


def test_the_plan_of_azure() -> None:
    [rule] = lifecycle.plan(parse("az://jobs/prod?account_name=ada"), 60)["rules"]
    assert rule["definition"]["filters"]["prefixMatch"] == ["jobs/prod/segments/"]


@pytest.mark.parametrize("url", ["memory://", "file:///tmp/jobs"])
def test_no_plan_without_a_bucket(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a bucket"):
        lifecycle.plan(parse(url), 60)


def test_days_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match="days: expected at least 1, got 0"):
        lifecycle.plan(parse("s3://jobs"), 0)


async def test_rules_are_applied_beside_others_and_checked(s3: Location) -> None:
    other = s3._replace(prefix=f"{s3.prefix}/other")
    assert await lifecycle.check(s3, 60) == [
        f"no rule ends segments: expected one for {s3.prefix}/segments/ after 60 days; apply the plan"
    ]
    await lifecycle.apply(other, 30)
    await lifecycle.apply(s3, 45)
    await lifecycle.apply(s3, 60)
    assert await lifecycle.check(s3, 60) == []
    assert await lifecycle.check(other, 30) == []
    [short] = await lifecycle.check(s3, 61)
    assert "ends segments after 60 days, expected 61 or more; lengthen it" in short


async def test_rules_of_others_that_hurt(s3: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """As S3 itself tells them; not every server knows storage classes."""
    given: list[dict[str, Any]] = [
        {"ID": "all", "Status": "Enabled", "Filter": {}, "Expiration": {"Days": 7}},
        {"ID": "off", "Status": "Disabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}},
        {"ID": "elsewhere", "Status": "Enabled", "Filter": {"Prefix": "elsewhere/"}, "Expiration": {"Days": 1}},
        {
            "ID": "cold",
            "Status": "Enabled",
            "Filter": {"And": {"Prefix": "tests/", "Tags": []}},
            "Transitions": [{"Days": 1, "StorageClass": "GLACIER"}, {"Days": 1, "StorageClass": "STANDARD_IA"}],
        },
    ]
    monkeypatch.setattr(lifecycle, "_rules", lambda client, location: given)
    assert await lifecycle.check(s3, 60) == [
        "rule 'all' for '' ends segments after 7 days, expected 60 or more; lengthen it",
        "rule 'cold' for 'tests/' moves segments to GLACIER, where they cannot be read; remove that",
    ]


@pytest.mark.parametrize("url", ["gs://jobs/prod", "az://jobs/prod?account_name=ada"])
async def test_other_clouds_have_tools_of_their_own(url: str) -> None:
    for call in (lifecycle.check, lifecycle.apply):
        with pytest.raises(ConfigError, match=r"its rules cannot be reached from here; use: (gcloud|az) storage"):
            await call(parse(url), 60)


async def test_wrong_credentials_and_a_server_that_is_away() -> None:
    with pytest.raises(ObjectsRefused, match="refused its lifecycle rules") as refused:
        await lifecycle.check(parse(server().url(access_key_id="nobody")), 60)
    assert SECRET_KEY not in repr(refused.value)
    away = parse("s3://jobs?endpoint=http://127.0.0.1:1&access_key_id=a&secret_access_key=b&timeout=2s")
    with pytest.raises(ObjectsUnavailable, match="expected its lifecycle rules, got EndpointConnectionError"):
        await lifecycle.apply(away, 60)


def test_a_cooler_place_after_some_days() -> None:
    """000-104."""
    s3, gs, az = (
        lifecycle.plan(parse(url), 60, 30) for url in ("s3://jobs", "gs://jobs", "az://jobs?account_name=ada")
    )
    assert s3["Rules"][0]["Transitions"] == [{"Days": 30, "StorageClass": "STANDARD_IA"}]
    assert [rule["condition"]["age"] for rule in gs["rule"]] == [30, 60]
    blob = az["rules"][0]["definition"]["actions"]["baseBlob"]
    assert blob["tierToCool"] == {"daysAfterModificationGreaterThan": 30}
    with pytest.raises(ConfigError, match="cooler_after: expected 1 to 59 days, got 60"):
        lifecycle.plan(parse("s3://jobs"), 60, 60)


@pytest.mark.parametrize("after", [1, 29])
def test_a_cooler_place_within_a_month(after: int) -> None:
    """S3 refuses to move anything to STANDARD_IA before 30 days."""
    [rule] = lifecycle.plan(parse("s3://jobs"), 60, after)["Rules"]
    assert rule["Transitions"] == [{"Days": after, "StorageClass": "GLACIER_IR"}]


@pytest.mark.parametrize(("keep", "grace", "least"), [("26h", "1h", 3), ("22h", "10m", 2), ("7d", "1d", 10)])
def test_the_fewest_days_that_objects_are_needed(keep: str, grace: str, least: int) -> None:
    """A segment may lie in the last hour of its day. Its keep begins after that, and then its grace."""
    settings = ObjectSettings(keep=keep, grace=grace)
    assert lifecycle.least_days(settings) == least
