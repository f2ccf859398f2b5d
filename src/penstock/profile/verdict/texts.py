"""The words of a verdict: one sentence with numbers, the changes as a list, what was tried; English or Chinese."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.profile.messages import Language, Message, in_language
from penstock.profile.report.table import columns
from penstock.system.units import format_bytes

if TYPE_CHECKING:
    from penstock.profile.verdict.case import Fix
    from penstock.profile.verdict.trial import Trial
    from penstock.profile.verdict.verdict import Verdict

WORKER_START = "worker_start"
"""The stage of a verdict where the loop waits for worker processes to start, more than for what they do."""

_STAGES = {
    "00_TOTAL_getitem": ("making samples", "取样本"),
    "01_file_cache": ("finding files", "查找文件"),
    "02_read_qpos": ("reading the state", "读取状态"),
    "03_read_images_total": ("the work around pictures", "图像处理"),
    "03a_read_one_camera": ("reading", "读取"),
    "03c_fetch_bytes": ("reading", "读取"),
    "03b_image_decode": ("decode", "解码"),
    "03d_view_copy": ("copying from the view", "从视图复制"),
    "03e_view_put": ("filling the view", "填充视图"),
    "04_read_actions": ("reading actions", "读取动作"),
    "05_to_tensor_normalize": ("making tensors", "转换张量"),
    "05a_normalize_picture": ("making floats", "归一化"),
    "06_to_device": ("copying to the device", "复制到设备"),
    "20_train_forward_pass": ("the forward pass", "前向传播"),
    "21_backward": ("the backward pass", "反向传播"),
    "22_optimizer_step": ("the optimizer", "优化器更新"),
    "fetch": ("putting samples together", "收集样本"),
    "collate": ("making a batch of samples", "拼成 batch"),
}
_FIXES_ZH = {
    "persistent workers": "常驻 worker",
    "decode once": "只解码一次",
    "threads": "更多线程",
    "workers": "更多 worker",
    "wait for the view": "等视图填满",
    "view in RAM": "内存视图",
    "view on disk": "磁盘视图",
    "scaled decode": "缩放解码",
    "decode on the GPU": "GPU 解码",
    "fewer columns": "更少的列",
    "faster storage": "更快的存储",
    "larger batch": "更大的 batch",
    "mixed precision": "混合精度",
}
_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "input": "input-bound: the step takes {step}, {wait} of it waiting for data",
        "compute": "compute-bound: the step takes {step}, {wait} of it waiting for data",
        "loader stage": "{stage} is {share} of the loader's work",
        "start stage": "starting the workers for each epoch is {share} of the waiting",
        "step stage": "{stage} is {share} of the computing",
        "spare": "the loader would have a batch every {batch}",
        "gives": "{fix} would make the step {ms}",
        "gives batch": "{fix} would make {factor} the samples take {ms}",
        "gives some": "{fix} may make it shorter; by how much could not be measured here",
        "refuted": "{fix} was predicted to make the step {ms}, and a trial did not confirm it",
        "nothing": "no change is known here that would make it shorter",
        "changes": "what would change it (step times are predictions; now {step}):",
        "no number": "?",
        "tried": "tried {fix} ({change}): predicted {predicted}, measured {measured} ({error}){control}",
        "control": "; without it {ms} at the same time",
        "no gain": ": the trial did not confirm it, the step did not get shorter",
        "note": "note: {note}",
    },
    "zh": {
        "input": "数据受限: 每步 {step}，其中 {wait} 在等待数据",
        "compute": "计算受限: 每步 {step}，其中 {wait} 在等待数据",
        "loader stage": "{stage} 占加载工作的 {share}",
        "start stage": "每个 epoch 启动 worker 占等待的 {share}",
        "step stage": "{stage} 占计算的 {share}",
        "spare": "加载器每 {batch} 可给出一个 batch",
        "gives": "{fix}可使每步降到 {ms}",
        "gives batch": "{fix}可使 {factor} 样本只需 {ms}",
        "gives some": "{fix}可能缩短训练步，幅度在此无法测量",
        "refuted": "{fix}预测为每步 {ms}，但尝试未能证实",
        "nothing": "这里没有已知的改变能缩短训练步",
        "changes": "可行的改变（时间为预测值；现在 {step}）:",
        "no number": "?",
        "tried": "已试 {fix} ({change}): 预测 {predicted}，实测 {measured} ({error}){control}",
        "control": "；同时不作改变为 {ms}",
        "no gain": ": 尝试未能证实，训练步没有变短",
        "note": "注: {note}",
    },
}


def note_text(note: str, lang: Language = "en") -> str:
    """The line of a note."""
    return _words(lang)["note"].format(note=in_language(note, lang))


def _words(lang: Language) -> dict[str, str]:
    if lang not in _WORDS:
        raise UsageError(f"a verdict speaks {' and '.join(_WORDS)}, not {lang!r}", hint='use lang="en" or lang="zh"')
    return _WORDS[lang]


def fix_name(fix: Fix) -> Message:
    """The name of a change."""
    return Message(fix.name, _FIXES_ZH.get(fix.name, fix.name))


def ms_text(ms: float) -> str:
    """As many digits as matter."""
    if ms >= 10_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms:.0f} ms" if ms >= 20 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"


def stage_text(name: str, lang: Language = "en") -> str:
    """A stage in words, with the name under which the table has it."""
    found = _STAGES.get(name)
    return name if found is None else f"{found[lang == 'zh']} ({name})"


def fix_text(fix: Fix, lang: Language = "en") -> str:
    """A change in words: "a view in RAM (memory=3.1 GiB)"."""
    if lang == "zh":
        return _FIXES_ZH.get(fix.name, fix.name)
    articles = {"view in RAM": "a view in RAM", "view on disk": "a view on disk", "larger batch": "a larger batch",
                "wait for the view": "the view, once it is filled,"}  # fmt: skip
    named = ("threads", "num_workers", "persistent_workers")
    told = ", ".join(f"{word}={fix.change[word]}" for word in named if word in fix.change)
    return told or articles.get(fix.name, fix.name)


def change_text(fix: Fix) -> str:
    """The options as a call would have them."""

    def value(name: str, given: Any) -> str:
        return f'"{format_bytes(given).replace(" ", "")}"' if name == "memory" else repr(given).replace("'", '"')

    return ", ".join(f"{name}={value(name, given)}" for name, given in fix.change.items()) or "–"


def sentence_of(found: Verdict, lang: Language = "en") -> str:
    """Bound by what, in numbers, and what would help most."""
    words = _words(lang)
    parts = [words[found.bound].format(step=ms_text(found.step_ms), wait=ms_text(found.wait_ms))]
    if found.stage is not None:
        kind = "loader stage" if found.bound == "input" else "step stage"
        kind = "start stage" if found.stage == WORKER_START else kind
        parts.append(words[kind].format(stage=stage_text(found.stage, lang), share=f"{found.stage_share:.0%}"))
    if found.bound == "compute" and found.now.service_ms:
        parts.append(words["spare"].format(batch=ms_text(_own_ms(found))))
    told = _first_told(found)
    if told is None:
        parts += [words["nothing"]] if found.bound == "compute" and not found.fixes else []
    elif told.predicted_step_ms is None:
        parts.append(words["gives some"].format(fix=fix_text(told, lang)))
    else:
        kind = "gives" if told.batch_factor == 1 else "gives batch"
        if found.trial is not None and found.trial.fix == told and not found.trial.is_gain:
            kind = "refuted"
        factor = f"{told.batch_factor:g}×"
        text = words[kind].format(fix=fix_text(told, lang), ms=ms_text(told.predicted_step_ms), factor=factor)
        parts.append(text)
    return ("；" if lang == "zh" else "; ").join(parts)


def _own_ms(found: Verdict) -> float:
    """A batch every so often if the loader had the CPUs for itself: what the step works on them is not its need.

    It kept up with the step: where its threads took longer, they waited for CPUs that the step had.
    """
    alone = replace(found.now, compute_cpu_ms=0.0, unexplained=1.0)
    return min(alone.batch_ms, found.step_ms)


def _first_told(found: Verdict) -> Fix | None:
    """The change that the sentence names: one that alters the training only where no other is known."""
    if found.best is not None:
        return found.best
    leaving = [fix for fix in found.fixes if not fix.alters_training]
    numbered = [fix for fix in leaving or found.fixes if fix.predicted_step_ms is not None]
    return next(iter([*numbered, *leaving]), None)


def lines_of(found: Verdict, lang: Language = "en") -> list[str]:
    """The sentence, then a line for each change, the trial and the notes."""
    words = _words(lang)
    lines = [sentence_of(found, lang)]
    if found.fixes:
        lines.append(words["changes"].format(step=ms_text(found.step_ms)))
        names = [in_language(fix_name(fix), lang) for fix in found.fixes]
        width = max(columns(name) for name in names)
        for name, fix in zip(names, found.fixes, strict=True):
            ms = words["no number"] if fix.predicted_step_ms is None else ms_text(fix.predicted_step_ms)
            change = f"{change_text(fix)}: " if fix.change else ""
            lines.append(f"  {name}{' ' * (width - columns(name))}  {ms:>8}  {change}{in_language(fix.why, lang)}")
    if found.trial is not None:
        lines.append(trial_text(found.trial, lang))
    return lines + [note_text(note, lang) for note in found.notes]


def trial_text(trial: Trial, lang: Language = "en") -> str:
    """Predicted against measured."""
    words, beside = _words(lang), trial.control_ms
    return words["tried"].format(
        fix=in_language(fix_name(trial.fix), lang),
        change=change_text(trial.fix),
        predicted=ms_text(trial.predicted_ms),
        measured=ms_text(trial.measured_ms),
        error=f"{trial.error:+.0%}",
        control="" if beside is None else words["control"].format(ms=ms_text(beside)),
    ) + ("" if trial.is_gain else words["no gain"])
