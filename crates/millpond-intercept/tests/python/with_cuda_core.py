"""Takes memory with cuda.core, and prints how often."""

from cuda.core import Device, DeviceMemoryResource, LegacyPinnedMemoryResource, VirtualMemoryResource

device = Device(0)
device.set_current()
stream = device.create_stream()
pools = [device.memory_resource, DeviceMemoryResource(device)]
kept = [pool.allocate((number + 1) << 20, stream=stream) for pool in pools for number in range(6)]
kept.append(LegacyPinnedMemoryResource().allocate(1 << 20))
kept.append(VirtualMemoryResource(device).allocate(4 << 20, stream=stream))
for block in kept[:4]:
    block.close(stream)
stream.sync()
print(len(kept))
