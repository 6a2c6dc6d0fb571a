"""Trains twice, kills the second run on the way, resumes it, and draws both loss curves.

    python examples/stop_and_resume.py train_torch.py [--steps 120]

Needs matplotlib for the picture, and what the training script needs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "demo-data"


def main() -> None:
    """Runs the script three times and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", help="train_torch.py or train_jax.py")
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    name = Path(options.script).stem
    whole, killed = FOLDER / f"{name}-whole", FOLDER / f"{name}-killed"

    print(f"1. {options.steps} steps without a stop")
    finish(start(options.script, whole, options.steps))
    print("\n2. The same again, killed on the way")
    run = start(options.script, killed, options.steps)
    while len(losses(killed)) < 3 * options.steps // 5 and run.poll() is None:
        time.sleep(0.05)
    run.kill()
    run.wait()
    before = losses(killed)
    print(f"\n3. Killed after step {before[-1][0]}; resumed from the last checkpoint")
    finish(start(options.script, killed, options.steps, "--resume"))
    resumed = losses(killed)[len(before) :]

    reference = dict(losses(whole))
    difference = max(abs(reference[step] - loss) for step, loss in before + resumed)
    print(f"\nlargest difference of a step's loss from the run without a stop: {difference:g}")
    draw(FOLDER / f"{name}.png", losses(whole), before, resumed)


def start(script: str, folder: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    """Starts a training run."""
    if not more:
        (folder / "losses.jsonl").unlink(missing_ok=True)
    command = [sys.executable, HERE / script, "--folder", folder, "--steps", str(steps), *more]
    return subprocess.Popen(command)


def finish(run: subprocess.Popen[bytes]) -> None:
    """Waits for a run; where it failed, all ends."""
    if run.wait():
        sys.exit(f"{run.args[1]} failed")


def losses(folder: Path) -> list[tuple[int, float]]:
    """Returns (step, loss) for each line of the log, in the order of writing."""
    if not (folder / "losses.jsonl").exists():
        return []
    lines = (folder / "losses.jsonl").read_text(encoding="utf-8").splitlines()
    return [(entry["step"], entry["loss"]) for entry in map(json.loads, lines)]


def draw(path: Path, *curves: list[tuple[int, float]]) -> None:
    """Draws the curves of the whole, of the killed and of the resumed run."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # the rest runs without it
    except ImportError:
        print('no picture: pip install "packcore[demo]"')
        return
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    styles = (
        {"color": "0.8", "linewidth": 7, "label": "without a stop"},
        {"color": "tab:red", "linewidth": 2, "label": "until it was killed"},
        {"color": "tab:blue", "linewidth": 1, "marker": ".", "label": "resumed"},
    )
    for curve, style in zip(curves, styles, strict=True):
        axes.plot(*zip(*curve, strict=True), **style)
    axes.set(xlabel="step", ylabel="loss in nats a byte", title=path.stem)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    print(f"picture: {path}")


if __name__ == "__main__":
    main()
