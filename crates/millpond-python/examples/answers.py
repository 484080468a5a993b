"""Would a recorded program run on a smaller device, and with which setting?"""

import sys

import millpond

recording = millpond.read(sys.argv[1])
verdict = recording.verdict(device=sys.argv[2])
print(verdict)
if not verdict.fits and verdict.apply is not None:
    setting = verdict.apply.partition("=")[2]
    proof = recording.verdict(device=sys.argv[2], torch_conf=setting)
    print(f"with {setting}: {'it finishes' if proof.fits else 'it does not finish'}")
