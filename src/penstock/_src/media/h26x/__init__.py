"""H.264 and H.265 streams: headers, order, damage.

FFmpeg decodes these streams, and this package reads their headers. PyAV's parser (`CodecContext.parse`) does not
replace that, as `tests/media/h26x/test_h26_streams.py` shows for the PyAV that is installed:

- A missing H.264 picture is no error for the decoder: it shows the rest, not marked as corrupt, even with
  `err_detect=explode`. The parser gives neither frame numbers nor the order of pictures, from which a gap is seen.
- The parser marks recovery points as key frames. A decoder that begins there shows pictures that are not those sent.
- A packet comes out of the parser when the next one goes in, and messages already hold one picture each.
- The parser tells no parameter sets (`extradata` is None), and nothing of B-frames. An MP4 file whose samples are
  moved as they are needs the sets of every picture (avcC, hvcC), and the order in which pictures are shown.
- FFmpeg's H.265 decoder does not tell that a slice is cut; `stream_decode.py` finds it.
"""
