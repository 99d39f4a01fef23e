"""Write ``data_readings.csv``: simulated readings, unbalanced, of 20 people and 24 items.

``python tests/reference/lmertest/write.py && Rscript tests/reference/lmertest/write.R``
"""

from pathlib import Path

import numpy as np
import pandas as pd

rng = np.random.default_rng(62)
grid = pd.MultiIndex.from_product([range(20), range(24)], names=["person", "number"])
table = grid.to_frame(index=False).sample(frac=0.8, random_state=1).sort_index()
n = len(table)
table["subject"] = table["person"].map("s{:02d}".format)
table["item"] = table["number"].map("i{:02d}".format)
table["school"] = (table["person"] // 4).map("c{}".format)
table["cond"] = np.array([*"abc"])[(table["person"] + table["number"]) % 3]
table["task"] = np.where(table["person"] % 2 == 0, "skim", "study")
table["old"] = rng.random(n) < 0.4
table["bits"] = rng.gamma(4, 2, n).round(2)
table["position"] = table["number"] + 1
# correlated intercepts and slopes of people, and of items
people = rng.multivariate_normal([0, 0], [[1600, 60], [60, 9]], 20)
items = rng.multivariate_normal([0, 0], [[900, -100], [-100, 400]], 24)
schools = rng.normal(0, 25, 5)
of_person = people[table["person"]]
of_item = items[table["number"]]
mean = 250 + 6 * table["bits"] + 18 * (table["cond"] == "b") - 12 * table["old"]
mean += 3 * table["bits"] * (table["task"] == "study") + 9 * np.sin(table["position"] / 4)
mean += of_person[:, 0] + of_person[:, 1] * table["bits"] + schools[table["person"] // 4]
mean += of_item[:, 0] + of_item[:, 1] * table["old"]
table["gaze_ms"] = (mean + rng.normal(0, 45, n)).round(1)
table["old"] = table["old"].map({True: "TRUE", False: "FALSE"})
table = table.drop(columns=["person", "number"])
table.to_csv(Path(__file__).with_name("data_readings.csv"), index=False)
