"""The formats of JSON Schema that are enforced, as regular expressions; each allows no more than its standard."""

from __future__ import annotations

_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAYS_31, _DAYS_30 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])", r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
# No year 0000: RFC 3339 has it, Python has not.
_DATE = rf"(?!0000)(?:\d{{4}}-(?:{_DAYS_31}|{_DAYS_30}|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
_HOUR = r"(?:[01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5]\d)"
LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,29}[A-Za-z0-9])?"  # up to 63 are allowed, of 253 together
LONGEST_HOST = 4 * 31 + 3  # characters of what follows
_HOST = rf"{LABEL}(?:\.{LABEL}){{0,3}}"
_SHORT_LABEL = "[A-Za-z0-9]+(?:-+[A-Za-z0-9]+)*"
_SHORT_HOST = rf"{_SHORT_LABEL}(?:\.{_SHORT_LABEL})*"
_MAIL_NAME = r"[A-Za-z0-9_%+-]+(?:\.[A-Za-z0-9_%+-]+)*"
_MAIL_HOST = r"(?:[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*\.)+[A-Za-z]{2,}"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_GROUP = "[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", f":(?::{_GROUP}){{1,7}}", "::"]
    + [f"(?:{_GROUP}:){{{n}}}(?::{_GROUP}){{1,{7 - n}}}" for n in range(1, 7)]
    + [f"(?:{_GROUP}:){{1,7}}:"]
)
# Addresses: what has a host, and what has none (mailto:, urn:).
URI_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"
URI_SCHEME, URI_PORT = r"[A-Za-z][A-Za-z0-9+.-]{0,20}://", r":[1-9]\d{0,3}"
URI_WITHOUT_HOST = r"(?!https?:)[A-Za-z][A-Za-z0-9+.-]{0,20}:[A-Za-z0-9]"
_URI = (
    rf"(?:[A-Za-z][A-Za-z0-9+.-]*://{_SHORT_HOST}(?:{URI_PORT})?(?:[/?]{URI_CHARACTER}*)?"
    rf"|(?!https?:)[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9]{URI_CHARACTER}*)(?:#{URI_CHARACTER}*)?"
)
_SOME = r"\d{1,6}"
_CLOCK = rf"T(?=\d)(?:{_SOME}H)?(?:{_SOME}M)?(?:{_SOME}S)?"
_DURATION = rf"P(?=\d|T\d)(?:{_SOME}W|(?:{_SOME}Y)?(?:{_SOME}M)?(?:{_SOME}D)?(?:{_CLOCK})?)"
_HEX = "[0-9a-fA-F]"


def _uuid(version: str = _HEX, variant: str = _HEX) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


FORMATS = {
    name: f"^(?:{expression})$"
    for name, expression in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": _DURATION,
        "email": f"{_MAIL_NAME}@{_MAIL_HOST}",
        "hostname": _HOST,
        "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
        "ipv6": _IPV6,
        "uri": _URI,
        "uuid": _uuid(),
        # As pydantic names them.
        **{f"uuid{version}": _uuid(str(version), "[89abAB]") for version in range(1, 9)},
    }.items()
}

# Host names that are right as long as they are no longer than one label may be, for which nothing has to be counted.
LONGEST_LABEL = 63
SHORT_HOST = f"^(?:{_SHORT_HOST})$"
# What Zod writes beside the format. It says nothing more, and to count to 253 as well takes too many rules.
ZOD_HOST = (
    r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$"
)
