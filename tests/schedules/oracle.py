"""When schedules come, by other people's code: croniter, dateutil and zoneinfo.

Usage: oracle.py CASES FROM UNTIL    (years)

A case is asked for those years, or for as many of the first as it says, or for a window of days.
Prints a line for each zone and case: for each rule of gaps and overlaps how many occurrences there are
and the CRC-32 of them all, in ms since the epoch. What croniter and dateutil tell are times of a wall
clock without a zone; what a zone makes of them is decided here, by the fold of PEP 495 alone.
"""

import json
import sys
import zlib
import zoneinfo
from datetime import datetime, timedelta, timezone

from croniter import croniter
from dateutil.relativedelta import relativedelta
from dateutil.rrule import rrulestr

# The pinned package, not whatever the system has.
zoneinfo.reset_tzpath(to=[])

MARGIN = timedelta(days=3)
RULES = [(gap, overlap) for gap in ("shift", "skip") for overlap in ("first", "last", "both")]


def wall_times(oracle, start, end):
    """The times of the wall clock that are meant, from start to end."""
    if "cron" in oracle:
        times = croniter(oracle["cron"], start - timedelta(seconds=1), implement_cron_bug=True)
        return until(end, iter(lambda: times.get_next(datetime), None))
    if "rrules" in oracle:
        rules = [rrulestr(rule + ";BYSECOND=0", dtstart=start) for rule in oracle["rrules"]]
        return sorted({time for rule in rules for time in until(end, rule)})
    anchor = datetime.fromisoformat(oracle["start"])
    step = {unit: oracle[unit] for unit in ("days", "months") if unit in oracle}
    times = (
        anchor + relativedelta(**{unit: k * count for unit, count in step.items()})
        for k in range(1_000_000)
    )
    return [time for time in until(end, times) if time >= start]


def until(end, times):
    found = []
    for time in times:
        if time >= end:
            return found
        found.append(time)
    return found


def instants(wall, zone):
    """What there is of a time in a zone: ("once", t), ("twice", t, u) or ("never", end of the gap)."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(timezone.utc)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(timezone.utc)
    if first.astimezone(zone).replace(tzinfo=None) != wall:
        return ("never", change_between(second, first, zone))
    return ("once", first) if first == second else ("twice", first, second)


def change_between(low, high, zone):
    """The first second in which the zone has another offset than at low."""
    before = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low).total_seconds() // 2)
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high


def chosen(found, gap, overlap):
    kind, *times = found
    if kind == "once":
        return times
    if kind == "never":
        return times if gap == "shift" else []
    return {"first": times[:1], "last": times[1:], "both": times}[overlap]


def main(path, first_year, last_year):
    with open(path) as file:
    query = json.load(file)
    for case in query["cases"]:
        if "window" in case:
            start = datetime.fromisoformat(case["window"]["from"])
            end = start + timedelta(days=case["window"]["days"])
        else:
            start = datetime(first_year, 1, 1)
            end = datetime(min(last_year, first_year + case.get("years", 1_000)), 1, 1)
        bounds = [time.replace(tzinfo=timezone.utc) for time in (start, end)]
        times = wall_times(case["oracle"], start - MARGIN, end + MARGIN)
        for name in query["zones"]:
            found = [instants(time, zoneinfo.ZoneInfo(name)) for time in times]
            line = [name, case["name"]]
            for gap, overlap in RULES:
                due = {time for each in found for time in chosen(each, gap, overlap)}
                due = sorted(time for time in due if bounds[0] <= time < bounds[1])
                text = "".join(f"{int(time.timestamp()) * 1000}\n" for time in due)
                line.append(f"{len(due)}:{zlib.crc32(text.encode()):08x}")
            print(" ".join(line))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
