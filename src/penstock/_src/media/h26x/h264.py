"""H.264: parameter sets, slice headers and the avcC record, as far as moving and decoding a stream needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock._src.media.h26x.nal import Bits, MissingSet, PictureFormat, checked_size, sample_description, with_lengths
from penstock.errors import VideoError

IDR, SPS, PPS, DELIMITER, END_OF_SEQUENCE, FILLER = 5, 7, 8, 9, 10, 12
PICTURE_TYPES = frozenset((1, 2, 5))
NOT_IN_SAMPLES = frozenset((SPS, PPS, DELIMITER, FILLER))

_SLICE_HEAD_BYTES = 64  # the fields that are read lie well within
_HIGH_PROFILES = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
_INTRA_ONLY_FLAG = 0x10  # constraint_set3: with these profiles it means that nothing is predicted from other pictures
_LONGEST_REORDER = 16
# MaxDpbMbs by level_idc (table A-1): how many macroblocks a decoder keeps.
_KEPT_MACROBLOCKS = {
    9: 396, 10: 396, 11: 900, 12: 2376, 13: 2376, 20: 2376, 21: 4752, 22: 8100, 30: 8100, 31: 18000, 32: 20480,
    40: 32768, 41: 32768, 42: 34816, 50: 110400, 51: 184320, 52: 184320, 60: 696320, 61: 696320, 62: 696320,
}  # fmt: skip


class H264Sps(NamedTuple):
    """A sequence parameter set."""

    number: int
    profile: bytes  # profile, constraints and level, as avcC repeats them
    picture: PictureFormat
    separate_planes: bool
    frame_num_bits: int
    gaps_allowed: bool
    poc_type: int
    poc_bits: int


class H264Pps(NamedTuple):
    """A picture parameter set: which sequence it belongs to."""

    number: int
    sps: int


class H264SliceHeader(NamedTuple):
    """The first fields of a slice header."""

    starts_picture: bool
    is_key: bool
    is_reference: bool
    is_field: bool
    frame_num: int
    poc_lsb: int | None
    sps: H264Sps


def unit_type(unit: bytes) -> int:
    """The type of a NAL unit; VideoError where the forbidden bit is set."""
    if unit[0] & 0x80:
        raise VideoError(f"a NAL unit begins with the forbidden byte {unit[0]:#04x}")
    return unit[0] & 0x1F


def is_base_layer(unit: bytes) -> bool:
    return True


def parse_sps(unit: bytes) -> H264Sps:
    bits = Bits(unit, 1)
    profile_idc, constraints, level = bits.u(8), bits.u(8), bits.u(8)
    number = bits.ue(31, "the number of a sequence parameter set")
    chroma, separate, depth = 1, False, 8
    if profile_idc in _HIGH_PROFILES:
        chroma = bits.ue(3, "chroma_format_idc")
        separate = chroma == 3 and bits.flag()
        depth = 8 + max(bits.ue(6, "bit_depth_luma"), bits.ue(6, "bit_depth_chroma"))
        bits.flag()
        if bits.flag():
            for k in range(12 if chroma == 3 else 8):
                if bits.flag():
                    _skip_scaling_list(bits, 16 if k < 6 else 64)
    frame_num_bits = 4 + bits.ue(12, "log2_max_frame_num")
    poc_type, poc_bits = _picture_order(bits)
    bits.ue(16, "max_num_ref_frames")
    gaps_allowed = bits.flag()
    width = 16 * (1 + bits.ue(2**16, "pic_width_in_mbs"))
    map_units = 1 + bits.ue(2**16, "pic_height_in_map_units")
    progressive = bits.flag()
    height = 16 * map_units * (1 if progressive else 2)
    if not progressive:
        bits.flag()
    bits.flag()
    crop = [bits.ue(2**16, "cropping") for _ in range(4)] if bits.flag() else [0, 0, 0, 0]
    step = (2 if chroma in (1, 2) else 1, (2 if chroma == 1 else 1) * (1 if progressive else 2))
    shown_width, shown_height = checked_size(width, height, crop, step)
    full_range, reorder = _vui(bits)
    kept = min(_KEPT_MACROBLOCKS.get(level, 696320) // (width * height // 256), _LONGEST_REORDER)
    intra_only = profile_idc in (44, 86, 100, 110, 122, 244) and bool(constraints & _INTRA_ONLY_FLAG)
    none = poc_type == 2 or intra_only
    picture = PictureFormat(
        width=shown_width,
        height=shown_height,
        chroma=0 if separate else chroma,
        bit_depth=depth,
        full_range=full_range,
        reorder=0 if none else kept if reorder is None else min(reorder, _LONGEST_REORDER),
        progressive=progressive,
    )
    profile = bytes((profile_idc, constraints, level))
    return H264Sps(number, profile, picture, separate, frame_num_bits, gaps_allowed, poc_type, poc_bits)


def parse_pps(unit: bytes) -> H264Pps:
    bits = Bits(unit[:16], 1)
    number = bits.ue(255, "the number of a picture parameter set")
    return H264Pps(number, bits.ue(31, "the number of a sequence parameter set"))


def parse_slice(unit: bytes, spss: dict[int, H264Sps], ppss: dict[int, H264Pps]) -> H264SliceHeader:
    """The head of a slice; its parameter sets must have come before it."""
    kind = unit_type(unit)
    bits = Bits(unit[:_SLICE_HEAD_BYTES], 1)
    first_macroblock = bits.ue()
    bits.ue(9, "slice_type")
    pps = ppss.get(number := bits.ue(255, "the number of a picture parameter set"))
    sps = spss.get(pps.sps) if pps is not None else None
    if sps is None:
        raise MissingSet(number)
    if sps.separate_planes:
        bits.skip(2)
    frame_num = bits.u(sps.frame_num_bits)
    is_field = not sps.picture.progressive and bits.flag()
    if is_field:
        bits.flag()
    if kind == IDR:
        bits.ue(65535, "idr_pic_id")
    poc_lsb = bits.u(sps.poc_bits) if sps.poc_type == 0 else None
    return H264SliceHeader(first_macroblock == 0, kind == IDR, unit[0] & 0x60 != 0, is_field, frame_num, poc_lsb, sps)


PARSERS = {SPS: parse_sps, PPS: parse_pps}


def describe(units: Mapping[int, Sequence[bytes]], active: H264Sps) -> bytes:
    """The stsd box: `avc1` with the parameter sets, by their kinds, in avcC."""
    record = [b"\1", active.profile, b"\xff"]
    for kind, count_bits in ((SPS, 0xE0), (PPS, 0)):
        record.append(bytes((count_bits | len(units[kind]),)))
        record += with_lengths(units[kind])
    if active.profile[0] in (100, 110, 122, 144):
        depth = active.picture.bit_depth - 8
        record.append(bytes((0xFC | active.picture.chroma, 0xF8 | depth, 0xF8 | depth, 0)))
    return sample_description(b"avc1", b"avcC", b"".join(record), active.picture.size_px)


def _picture_order(bits: Bits) -> tuple[int, int]:
    poc_type = bits.ue(2, "pic_order_cnt_type")
    if poc_type == 0:
        return 0, 4 + bits.ue(12, "log2_max_pic_order_cnt_lsb")
    if poc_type == 1:
        bits.flag()
        bits.se()
        bits.se()
        for _ in range(bits.ue(255, "num_ref_frames_in_pic_order_cnt_cycle")):
            bits.se()
    return poc_type, 0


def _skip_scaling_list(bits: Bits, size: int) -> None:
    last, following = 8, 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _vui(bits: Bits) -> tuple[bool, int | None]:
    """Full range and reordered pictures, from the optional end of a parameter set; some encoders write it wrongly, and
    no decoder minds."""
    full_range = False
    try:
        if not bits.flag():
            return False, None
        full_range = bits.video_signal()
        if bits.flag():
            bits.ue()
            bits.ue()
        if bits.flag():
            bits.skip(65)
        buffered = False
        for _ in range(2):
            if bits.flag():
                buffered = True
                _skip_hrd(bits)
        if buffered:
            bits.flag()
        bits.flag()
        if not bits.flag():
            return full_range, None
        bits.flag()
        for _ in range(4):
            bits.ue()
        return full_range, bits.ue()
    except VideoError:
        return full_range, None


def _skip_hrd(bits: Bits) -> None:
    count = 1 + bits.ue(31, "cpb_cnt")
    bits.skip(8)
    for _ in range(count):
        bits.ue()
        bits.ue()
        bits.flag()
    bits.skip(20)
