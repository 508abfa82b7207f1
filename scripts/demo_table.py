"""In: where the JSON goes ("-": stdout, then the table goes to stderr) and lkv replay's JSON files.
Out: one table, a row a format."""
import json
import os
import sys

COLUMNS = [  # heading, width, value of one replay
    ("format", 7, lambda r: r["format"]),
    ("requests", 9, lambda r: f"{r['requests']}"),
    ("hit ratio", 10, lambda r: f"{100 * r['hit_ratio']:.1f} %"),
    ("blocks peak/total", 18, lambda r: f"{r['blocks_peak']}/{r['blocks_total']}"),
    ("waste", 8, lambda r: f"{100 * r['internal_waste_mean']:.2f} %"),
    ("rows checked", 13, lambda r: f"{r['attend']['rows']}"),
    ("error vs float64", 17, lambda r: f"{r['attend']['max_rel_l2']:.1e}"),
    ("admit us p50/p99", 17, lambda r: pair(r["match_admit_us"])),
    ("step us p50/p99", 16, lambda r: pair(r["step_us"])),
]


def pair(us):
    return f"{us['p50']:.1f}/{us['p99']:.1f}"


def load(path):
    with open(path, encoding="utf-8") as file:
        replay = json.load(file)
    replay.setdefault("format", os.path.basename(path).removesuffix(".json"))
    return replay


def main(json_path, *paths):
    rows = [load(path) for path in paths]
    table = sys.stderr if json_path == "-" else sys.stdout
    print("".join(name.rjust(width) for name, width, _ in COLUMNS), file=table)
    for row in rows:
        print("".join(value(row).rjust(width) for _, width, value in COLUMNS), file=table)
    if json_path == "-":
        json.dump({"rows": rows}, sys.stdout, indent=2)
        print()
    else:
        with open(json_path, "w", encoding="utf-8") as file:
            json.dump({"rows": rows}, file, indent=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
