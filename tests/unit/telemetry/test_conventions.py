"""Our names against the package that defines them: a change there must be seen and decided on."""

from opentelemetry.semconv._incubating.attributes import rpc_attributes
from opentelemetry.semconv._incubating.metrics import rpc_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from steelyard.telemetry import conventions


def test_names_are_those_of_the_conventions() -> None:
    assert conventions.RPC_SYSTEM_NAME == rpc_attributes.RPC_SYSTEM_NAME
    assert conventions.RPC_METHOD == rpc_attributes.RPC_METHOD
    assert conventions.RPC_RESPONSE_STATUS_CODE == rpc_attributes.RPC_RESPONSE_STATUS_CODE
    assert conventions.ERROR_TYPE == error_attributes.ERROR_TYPE
    assert conventions.SERVER_ADDRESS == server_attributes.SERVER_ADDRESS
    assert conventions.SERVER_PORT == server_attributes.SERVER_PORT
    assert conventions.CLIENT_CALL_DURATION == rpc_metrics.RPC_CLIENT_CALL_DURATION
    assert conventions.SERVER_CALL_DURATION == rpc_metrics.RPC_SERVER_CALL_DURATION


def test_the_schema_is_one_that_the_package_knows() -> None:
    assert conventions.SCHEMA_URL in {schema.value for schema in Schemas}


def test_duration_bounds_keep_those_of_the_conventions() -> None:
    published = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert conventions.DURATION_BOUNDS_S[-len(published) :] == published
    assert list(conventions.DURATION_BOUNDS_S) == sorted(set(conventions.DURATION_BOUNDS_S))
