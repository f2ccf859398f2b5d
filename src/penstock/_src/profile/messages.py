"""The message catalogue: what tables and verdicts say, in English and Chinese with the same values."""

from __future__ import annotations

from typing import Any, Literal

from penstock.errors import UsageError

Language = Literal["en", "zh"]

_MESSAGES: dict[str, tuple[str, str]] = {
    # Why a change would help
    "measured threads": (
        "with {more} at once an image takes one of them {then:.2f} ms, now {now:.2f}",
        "{more} 个同时工作时，每个线程处理一张图像需 {then:.2f} ms，现在 {now:.2f} ms",
    ),
    "shared work": (
        "{more} of the {cores} CPUs granted share {service:.1f} ms of work per batch; others may want them",
        "可用的 {cores} 个 CPU 中 {more} 个分担每个 batch {service:.1f} ms 的工作；其他程序也可能需要它们",
    ),
    "waiting work": (
        "of {service:.1f} ms per batch a CPU works {cpu:.1f}, the rest waits: {more} at once wait together, though "
        "there are {cores} CPUs; each takes memory",
        "每个 batch 的 {service:.1f} ms 中 CPU 只工作 {cpu:.1f} ms，其余在等待: 虽然只有 {cores} 个 CPU，"
        "{more} 个可同时等待；每个都占用内存",
    ),
    "and stay": ("; starting them takes time, so they stay from epoch to epoch", "；启动需要时间，因此各 epoch 间常驻"),
    "of a stream": (
        "; a stream has to give each worker another part (get_worker_info), or every sample comes once from each",
        "；流式数据集须按 worker 分片（get_worker_info），否则每个样本会由每个 worker 各给一次",
    ),
    "persistent": (
        "each epoch starts its worker processes anew ({workers}) and waits {wait} for its first batch, every "
        "{steps:.0f} steps; workers that stay need {first} for it",
        "每个 epoch 都重新启动 {workers} 个 worker 进程，等待首个 batch {wait}，每 {steps:.0f} 步一次；"
        "常驻的 worker 只需 {first}",
    ),
    "decode once": (
        "penstock.Loader with a view decodes each image once, at the training size, and copies it from then on; what "
        "that gives here was not measured",
        "带视图的 penstock.Loader 以训练尺寸将每张图像只解码一次，之后只需复制；在此未测量其效果",
    ),
    "view is filled": ("are all filled now", "现已填满"),
    "view is being filled": ("are being filled ({filled:,} so far)", "正在填充（已有 {filled:,}）"),
    "filling": (
        "its {places:,} places {state}: then {share:.0%} of the images are only copied",
        "视图的 {places:,} 个位置{state}: 之后 {share:.0%} 的图像只需复制",
    ),
    "images in RAM": ("{needed} of images at the training size", "训练尺寸的图像共 {needed}"),
    "needs memory": (" need memory={wanted}, which this machine has", "，需要 memory={wanted}，本机有这么多"),
    "does not fit": (
        " do not fit: {left} of the budget hold {share:.0%}",
        "，放不下: 预算中的 {left} 可容纳 {share:.0%}",
    ),
    "copy takes": ("; a copy takes {copy:.3f} ms", "；复制一张需 {copy:.3f} ms"),
    "not measured": ("; what a copy takes was not measured", "；复制所需时间未测量"),
    "fills": ("; it fills during the first epoch", "；在第一个 epoch 中填充"),
    "images on disk": ("{needed} in the cache directory ({free} free)", "缓存目录中 {needed}（空闲 {free}）"),
    "from disk takes": ("; an image from there takes {copy:.3f} ms", "；从那里取一张图像需 {copy:.3f} ms"),
    "fills and stays": (
        "; it fills during the first epoch and stays for later runs",
        "；在第一个 epoch 中填充，并留给以后的运行",
    ),
    "scaled": (
        "JPEGs decoded at a fraction of their size: {ratio:.2f} of the time of a full decode on {images} images of "
        "yours; pixels differ a little from those of full decode and resize",
        "以缩小的尺寸解码 JPEG: 在您的 {images} 张图像上为完整解码时间的 {ratio:.2f}；像素与完整解码再缩放略有不同",
    ),
    "nothing measured": ("nothing could be measured here", "在此无法测量"),
    "nvjpeg not measured": ("nvJPEG could not be measured here", "在此无法测量 nvJPEG"),
    "nvjpeg": (
        "nvJPEG takes {ms:.3f} ms for an image of yours; it shares the GPU with the step, which costs the step "
        "something that this number leaves out",
        "nvJPEG 处理您的一张图像需 {ms:.3f} ms；它与训练步共用 GPU，这个数字不含由此给训练步带来的开销",
    ),
    "storage": (
        "the files are read at {has:,.0f} MB/s; {needed:,.0f} MB/s ({batch:.1f} MB per batch) would keep up with the "
        "rest",
        "文件读取速度为 {has:,.0f} MB/s；{needed:,.0f} MB/s（每个 batch {batch:.1f} MB）即可跟上其余部分",
    ),
    "larger batch": (
        "your step took {low:.1f} ms for {half} samples and {high:.1f} ms for {size}: {fixed:.1f} ms are fixed, and a "
        "larger batch pays them less often; it is another training (learning rate), and takes more memory",
        "您的训练步处理 {half} 个样本需 {low:.1f} ms，{size} 个需 {high:.1f} ms: 其中 {fixed:.1f} ms 是固定开销，"
        "batch 更大则分摊更少；但训练会因此不同（学习率），占用内存也更多",
    ),
    "larger batch unknown": (
        "what is fixed in a step is paid less often; verdict(step=…) measures how much that is here; it is another "
        "training (learning rate), and takes more memory",
        "每步的固定开销分摊得更少；给出 step=… 可实测其大小；但训练会因此不同（学习率），占用内存也更多",
    ),
    "mixed precision": (
        "bfloat16 autocast on the GPU (none was seen around a gpu_span); what it brings depends on the model: measure "
        "it (no number is made up here)",
        "在 GPU 上使用 bfloat16 autocast（gpu_span 外层未见 autocast）；效果取决于模型: 请实测（这里不编造数字）",
    ),
    # Notes
    "few steps": ("{count} steps are few: the numbers may still move", "只有 {count} 步: 数字仍可能变化"),
    "own process": (
        'engine="process" makes batches in a process of its own, which does not take Python\'s lock from the step; '
        "decoding on the GPU and copying from a view take less than decoding on CPUs",
        'engine="process" 在独立进程中制作 batch，不与训练步争用 Python 锁；GPU 解码和从视图复制比 CPU 解码占用更少',
    ),
    "fewer threads": (
        "the engine is a process of its own already: fewer threads (threads=…) leave the step more CPUs; decoding on "
        "the GPU and copying from a view take less than decoding on CPUs",
        "加载引擎已是独立进程: 减少线程（threads=…）可给训练步留出更多 CPU；GPU 解码和从视图复制比 CPU 解码占用更少",
    ),
    "remote latency": (
        "remote data, latency-bound: a request takes {request:.0f} ms, {share} of it until its answer begins, and "
        "brings {size} kB; more requests at once help (PENSTOCK_REMOTE_IN_FLIGHT), or a view",
        "远程数据，受延迟限制: 每个请求 {request:.0f} ms，其中 {share} 在等待响应开始，带来 {size} kB；"
        "增加并发请求 (PENSTOCK_REMOTE_IN_FLIGHT) 或使用 view",
    ),
    "remote bandwidth": (
        "remote data, bandwidth-bound: a request takes {request:.0f} ms, {share} of it until its answer begins, and "
        "brings {size} kB; fewer bytes help: smaller images, a view, a machine nearer to the bucket",
        "远程数据，受带宽限制: 每个请求 {request:.0f} ms，其中 {share} 在等待响应开始，带来 {size} kB；"
        "减少字节: 更小的图像、view，或离存储更近的机器",
    ),
    "measuring failed": ("nothing could be measured on the data: {error}", "无法在数据上测量: {error}"),
    "unmeasured": (
        "{why}: nothing was measured on the data, so some changes have no number",
        "{why}: 没有在数据上测量，因此有些改变没有数字",
    ),
    "not at hand": ("the loader is not at hand", "加载器不在这里"),
    "data is gone": ("the data is not there (looked for {paths})", "数据不在原处（查找过 {paths}）"),
    "nothing tried": ("nothing was tried: {why}", "未作尝试: {why}"),
    "nothing known": (
        "no change is known here that makes the step shorter, with a number that a trial could check",
        "这里没有已知的、带有可检验数字的改变能缩短训练步",
    ),
    "needs step": ("{fix} was not tried: that needs step=…", "未尝试{fix}: 需要 step=…"),
    "long epoch": (
        "{fix} was not tried: what it changes shows only over whole epochs, and one takes {seconds:.0f} s; make the "
        "change and record again",
        "未尝试{fix}: 效果只在完整的 epoch 中可见，而一个 epoch 需 {seconds:.0f} s；请作此改变后重新记录",
    ),
    "trial failed": ("{fix} could not be tried: {error}", "无法尝试{fix}: {error}"),
    "disturbed": (
        "the machine is not as it was in the run: without the change a step takes {beside:.1f} ms now, then {then:.1f} "
        "ms, so this trial tells little of the prediction",
        "机器状态与运行时不同: 不作改变时每步现在 {beside:.1f} ms，当时 {then:.1f} ms，因此这次尝试难以检验预测",
    ),
    # Of the command
    "no step": (
        "no step was recorded, so there is no verdict: iterate a penstock.Loader, profile.attach(dataloader), or call "
        "profile.mark_step()",
        "没有记录任何训练步，因此没有结论: 请遍历 penstock.Loader 或 profile.attach(dataloader)，"
        "或调用 profile.mark_step()",
    ),
    "no loader": ("the run says nothing of its loader", "运行记录中没有加载器的信息"),
    "lives elsewhere": (
        "the run's loader is a {kind}: it can be tried only where it lives, by profile.verdict(check=True)",
        "这次运行的加载器是 {kind}: 只能在它所在的程序中用 profile.verdict(check=True) 尝试",
    ),
    "not made again": ("the run's loader cannot be made again here: {error}", "无法在此重建这次运行的加载器: {error}"),
    # The sentence of a verdict, and the lines below it
    "verdict: input": (
        "input-bound: the step takes {step}, {wait} of it waiting for data",
        "数据受限: 每步 {step}，其中 {wait} 在等待数据",
    ),
    "verdict: loader": (
        "slowed by the loader: the step takes {beside} while the loader works and {alone} while it rests ({ratio}×); "
        "{wait} of it is waiting for data",
        "被加载器拖慢: 加载器工作时每步 {beside}，休息时 {alone}（{ratio} 倍）；其中 {wait} 在等待数据",
    ),
    "verdict: compute": (
        "compute-bound: the step takes {step}, {wait} of it waiting for data",
        "计算受限: 每步 {step}，其中 {wait} 在等待数据",
    ),
    "verdict: loader stage": ("{stage} is {share} of the loader's work", "{stage} 占加载工作的 {share}"),
    "verdict: start stage": (
        "starting the workers for each epoch is {share} of the waiting",
        "每个 epoch 启动 worker 占等待的 {share}",
    ),
    "verdict: step stage": ("{stage} is {share} of the computing", "{stage} 占计算的 {share}"),
    "verdict: spare": ("the loader would have a batch every {batch}", "加载器每 {batch} 可给出一个 batch"),
    "verdict: gives": ("{fix} would make the step {ms}", "{fix}可使每步降到 {ms}"),
    "verdict: gives batch": ("{fix} would make {factor} the samples take {ms}", "{fix}可使 {factor} 样本只需 {ms}"),
    "verdict: gives some": (
        "{fix} may make it shorter; by how much could not be measured here",
        "{fix}可能缩短训练步，幅度在此无法测量",
    ),
    "verdict: refuted": (
        "{fix} was predicted to make the step {ms}, and a trial did not confirm it",
        "{fix}预测为每步 {ms}，但尝试未能证实",
    ),
    "verdict: nothing": ("no change is known here that would make it shorter", "这里没有已知的改变能缩短训练步"),
    "verdict: changes": (
        "what would change it (step times are predictions; now {step}):",
        "可行的改变（时间为预测值；现在 {step}）:",
    ),
    "verdict: tried": (
        "tried {fix} ({change}): predicted {predicted}, measured {measured} ({error}){control}",
        "已试 {fix} ({change}): 预测 {predicted}，实测 {measured} ({error}){control}",
    ),
    "verdict: control": ("; without it {ms} at the same time", "；同时不作改变为 {ms}"),
    "verdict: no gain": (
        ": the trial did not confirm it, the step did not get shorter",
        ": 尝试未能证实，训练步没有变短",
    ),
    "verdict: note": ("note: {note}", "注: {note}"),
    # Stages
    "stage: 00_TOTAL_getitem": ("making samples", "取样本"),
    "stage: 01_file_cache": ("finding files", "查找文件"),
    "stage: 02_read_qpos": ("reading the state", "读取状态"),
    "stage: 03_read_images_total": ("the work around images", "图像处理"),
    "stage: 03a_read_one_camera": ("reading", "读取"),
    "stage: 03c_fetch_bytes": ("reading", "读取"),
    "stage: 03b_image_decode": ("decode", "解码"),
    "stage: 03d_view_copy": ("copying from the view", "从视图复制"),
    "stage: 03e_view_put": ("filling the view", "填充视图"),
    "stage: 04_read_actions": ("reading actions", "读取动作"),
    "stage: 05_to_tensor_normalize": ("making tensors", "转换张量"),
    "stage: 05a_normalize_image": ("making floats", "归一化"),
    "stage: 06_to_device": ("copying to the device", "复制到设备"),
    "stage: 20_train_forward_pass": ("the forward pass", "前向传播"),
    "stage: 21_backward": ("the backward pass", "反向传播"),
    "stage: 22_optimizer_step": ("the optimizer", "优化器更新"),
    "stage: fetch": ("putting samples together", "收集样本"),
    "stage: collate": ("making a batch of samples", "拼成 batch"),
    # Changes
    "fix: persistent workers": ("persistent workers", "常驻 worker"),
    "fix: decode once": ("decode once", "只解码一次"),
    "fix: threads": ("threads", "更多线程"),
    "fix: workers": ("workers", "更多 worker"),
    "fix: wait for the view": ("wait for the view", "等视图填满"),
    "fix: view in RAM": ("view in RAM", "内存视图"),
    "fix: view on disk": ("view on disk", "磁盘视图"),
    "fix: scaled decode": ("scaled decode", "缩放解码"),
    "fix: decode on the GPU": ("decode on the GPU", "GPU 解码"),
    "fix: faster storage": ("faster storage", "更快的存储"),
    "fix: larger batch": ("larger batch", "更大的 batch"),
    "fix: mixed precision": ("mixed precision", "混合精度"),
    # The table, and the lines of epochs
    "table: title": ("⏱️  Timing statistics", "⏱️  性能分析统计"),
    "table: name": ("Stage", "环节名称"),
    "table: total": ("total", "总计"),
    "table: calls": ("calls", "调用"),
    "table: mean": ("mean", "平均"),
    "table: self": ("self", "自身"),
    "table: share": ("share", "占比"),
    "table: times": ("×", "次"),
    "table: none": ("(no span was recorded)", "（没有记录任何环节）"),
    "table: off": (
        "(no span was recorded: profiling is off, by PENSTOCK_PROFILE=0 or profile.disable())",
        "（没有记录任何环节: 性能分析已关闭，PENSTOCK_PROFILE=0 或 profile.disable()）",
    ),
    "table: of": (
        "share: of the time of all {steps} steps ({time}); above 100 % where several threads work at once, or beside "
        "the steps (a validation)",
        "占比: 相对全部 {steps} 步的时间 ({time})；多线程同时工作，或在训练步之外（如验证）也工作时可超过 100 %",
    ),
    "table: no steps": ("share: unknown, no step was marked", "占比: 未知，没有标记训练步"),
    "table: nested": (
        "total: a call inside a call of the same name is in it once; mean: of all calls ({names})",
        "总计: 同名嵌套的调用只计一次；平均: 针对所有调用 ({names})",
    ),
    "table: wait": (
        "data wait: {share} of the step ({wait} of {step})",
        "数据等待: 占训练步的 {share}（{step} 中的 {wait}）",
    ),
    "table: cost": (
        "step alone: {alone}, with the loader at work: {beside} ({ratio}×)",
        "训练步单独: {alone}，加载器工作时: {beside}（{ratio} 倍）",
    ),
    "table: lost": ("not recorded: {what}", "未记录: {what}"),
    "table: left out": ("… and {count} stages more, {time} in all", "… 另有 {count} 个环节，共 {time}"),
    "table: epoch": ("Epoch {number} took", "Epoch {number} 总耗时"),
    "table: validation": ("validation took", "验证耗时"),
    "table: training": ("training took", "训练耗时"),
    "table: epoch wait": ("data wait", "数据等待"),
    "table: steps": ("steps", "步数"),
}


class BilingualText(str):
    """A text that is English, and knows itself in Chinese."""

    zh: str

    def __new__(cls, english: str, chinese: str) -> BilingualText:
        made = super().__new__(cls, english)
        made.zh = chinese
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.zh

    def __add__(self, other: str) -> BilingualText:
        return BilingualText(str(self) + str(other), self.zh + in_language(other, "zh"))


def message(key: str, **values: Any) -> BilingualText:
    """A text of the catalogue, with its values."""
    english, chinese = _MESSAGES[key]
    translated = {name: in_language(each, "zh") if isinstance(each, str) else each for name, each in values.items()}
    return BilingualText(english.format(**values), chinese.format(**translated))


def name_of(kind: str, name: str) -> BilingualText:
    """A "stage" or a "fix" in words; by its own name where it has none here."""
    return message(f"{kind}: {name}") if f"{kind}: {name}" in _MESSAGES else BilingualText(name, name)


def in_language(text: str, lang: Language) -> str:
    """A text in the language asked for, where it knows that one; errors of the system do not."""
    if lang not in ("en", "zh"):
        raise UsageError(f"the profile speaks en and zh, not {lang!r}", hint='use lang="en" or lang="zh"')
    return text.zh if lang == "zh" and isinstance(text, BilingualText) else str(text)


def ms_text(ms: float) -> str:
    """As many digits as matter."""
    if ms >= 10_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms:.0f} ms" if ms >= 20 else f"{ms:.1f} ms" if ms >= 1 else f"{ms:.2f} ms"
