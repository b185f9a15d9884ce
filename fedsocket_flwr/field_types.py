"""The types of a configuration's fields: numbers as YAML writes them, names, free mappings, and a frozen section of them."""

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LARGEST_SEED = 2**63 - 1


class ExponentText(str):
    """Text such as ``1e-3``, written without quotes: YAML 1.1 reads text where most writers mean a number.

    A field of text keeps it, so that a client may be called ``12e7``; a field of a number and a free mapping take the number.
    """


def _number_from_text(value: Any) -> Any:
    """YAML 1.1 reads ``1e-3`` as text; a field that is a number takes it as one."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return value
    try:
        return float(value)
    except (ValueError, OverflowError):
        return value


def _plain_value(value: Any) -> Any:
    """Return what stands in a free mapping as what JSON and YAML both have, so that storing and re-reading changes nothing."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"the keys {list(value)} are not all text")
        return {key: _plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in value]
    if isinstance(value, ExponentText):
        # A hexadecimal id such as 695e0514 would be infinite as a number: it is none.
        return float(value) if math.isfinite(float(value)) else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise ValueError(f"{value!r} is neither text, a number, true, false, null, a list nor a mapping")


def sequence_as_tuple(value: Any) -> Any:
    """Take a list, as YAML has it, for a tuple."""
    return tuple(value) if isinstance(value, list) else value


Number = Annotated[float, BeforeValidator(_number_from_text), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(gt=0, le=1)]
Share = Annotated[Number, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
FreeMapping = Annotated[dict[str, Any], BeforeValidator(_plain_value)]
Names = Annotated[tuple[str, ...], BeforeValidator(sequence_as_tuple)]
# A name becomes part of parameter names, tables and (made safe) file names: no separators of paths, no control characters.
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\s./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*$")]


class Settings(BaseModel):
    """A frozen section in which an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
