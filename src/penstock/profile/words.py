"""The words of a verdict: one sentence with numbers, the changes as a list, what was tried; English or Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.units import format_bytes

if TYPE_CHECKING:
    from penstock.profile.fixes import Fix
    from penstock.profile.trial import Trial
    from penstock.profile.verdict import Verdict

Language = Literal["en", "zh"]

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
}
_FIXES_ZH = {
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
        "step stage": "{stage} is {share} of the computing",
        "spare": "the loader would have a batch every {batch}",
        "gives": "{fix} would make the step {ms}",
        "gives batch": "{fix} would make {factor} the samples take {ms}",
        "nothing": "no change of the loader would make it shorter",
        "changes": "what would change it (step times are predictions; now {step}):",
        "no number": "?",
        "tried": "tried {fix} ({change}): predicted {predicted}, measured {measured} ({error}){control}",
        "control": "; without it {ms} at the same time",
        "note": "note: {note}",
    },
    "zh": {
        "input": "数据受限: 每步 {step}，其中 {wait} 在等待数据",
        "compute": "计算受限: 每步 {step}，其中 {wait} 在等待数据",
        "loader stage": "{stage} 占加载工作的 {share}",
        "step stage": "{stage} 占计算的 {share}",
        "spare": "加载器每 {batch} 可给出一个 batch",
        "gives": "{fix}可使每步降到 {ms}",
        "gives batch": "{fix}可使 {factor} 样本只需 {ms}",
        "nothing": "改变加载器不会缩短训练步",
        "changes": "可行的改变（时间为预测值；现在 {step}）:",
        "no number": "?",
        "tried": "已试 {fix} ({change}): 预测 {predicted}，实测 {measured} ({error}){control}",
        "control": "；同时不作改变为 {ms}",
        "note": "注: {note}",
    },
}


def ms_text(ms: float) -> str:
    """As many digits as matter."""
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
    named = {"threads": "threads", "num_workers": "num_workers"}
    counted = next((f"{word}={fix.change[word]}" for word in named if word in fix.change), None)
    return counted or articles.get(fix.name, fix.name)


def change_text(fix: Fix) -> str:
    """The options as a call would have them."""

    def value(name: str, given: Any) -> str:
        return f'"{format_bytes(given).replace(" ", "")}"' if name == "memory" else repr(given).replace("'", '"')

    return ", ".join(f"{name}={value(name, given)}" for name, given in fix.change.items()) or "–"


def sentence_of(found: Verdict, lang: Language = "en") -> str:
    """Bound by what, in numbers, and what would help most."""
    words = _WORDS[lang]
    parts = [words[found.bound].format(step=ms_text(found.step_ms), wait=ms_text(found.wait_ms))]
    if found.stage is not None:
        kind = "loader stage" if found.bound == "input" else "step stage"
        parts.append(words[kind].format(stage=stage_text(found.stage, lang), share=f"{found.stage_share:.0%}"))
    if found.bound == "compute" and found.now.service_ms:
        parts.append(words["spare"].format(batch=ms_text(found.now.batch_ms)))
    told = found.best or next((fix for fix in found.fixes if fix.predicted_step_ms is not None), None)
    if told is not None and told.predicted_step_ms is not None:
        kind = "gives" if told.batch_factor == 1 else "gives batch"
        factor = f"{told.batch_factor:g}×"
        text = words[kind].format(fix=fix_text(told, lang), ms=ms_text(told.predicted_step_ms), factor=factor)
        parts.append(text)
    elif found.bound == "compute":
        parts.append(words["nothing"])
    return ("；" if lang == "zh" else "; ").join(parts)


def lines_of(found: Verdict, lang: Language = "en") -> list[str]:
    """The sentence, then a line for each change, the trial and the notes."""
    words = _WORDS[lang]
    lines = [sentence_of(found, lang)]
    if found.fixes:
        lines.append(words["changes"].format(step=ms_text(found.step_ms)))
        names = [fix.name if lang == "en" else _FIXES_ZH.get(fix.name, fix.name) for fix in found.fixes]
        width = max(len(name) for name in names)
        for name, fix in zip(names, found.fixes, strict=True):
            ms = words["no number"] if fix.predicted_step_ms is None else ms_text(fix.predicted_step_ms)
            change = f"{change_text(fix)}: " if fix.change else ""
            lines.append(f"  {name:<{width}}  {ms:>8}  {change}{fix.why}")
    if found.trial is not None:
        lines.append(trial_text(found.trial, lang))
    return lines + [words["note"].format(note=note) for note in found.notes]


def trial_text(trial: Trial, lang: Language = "en") -> str:
    """Predicted against measured."""
    words, beside = _WORDS[lang], trial.control_ms
    return words["tried"].format(
        fix=trial.fix.name if lang == "en" else _FIXES_ZH.get(trial.fix.name, trial.fix.name),
        change=change_text(trial.fix),
        predicted=ms_text(trial.predicted_ms),
        measured=ms_text(trial.measured_ms),
        error=f"{trial.error:+.0%}",
        control="" if beside is None else words["control"].format(ms=ms_text(beside)),
    )
