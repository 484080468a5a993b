// Memory management in GUDA's way: device memory with copies, a pool of memory, pinned buffers, batches of a data set, a structure of arrays,
// and the search for leaks.
//
//	go run .    (with PKG_CONFIG_PATH and LD_LIBRARY_PATH set to where the library is installed)
//
// A tag belongs to a thread of the system, so a goroutine that sets one locks itself to its thread.
package main

// #cgo pkg-config: millpond
// #include <millpond.h>
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"
)

// Error is a failed call of the library.
type Error struct {
	Code C.millpond_status
	Text string
}

func (e *Error) Error() string {
	return C.GoString(C.millpond_status_name(C.int32_t(e.Code))) + ": " + e.Text
}

// ErrOutOfMemory is what errors.Is finds in an error for which memory was lacking.
var ErrOutOfMemory = errors.New("out of memory")

func (e *Error) Is(target error) bool {
	return target == ErrOutOfMemory && (e.Code == C.MILLPOND_OUT_OF_MEMORY || e.Code == C.MILLPOND_TOO_LARGE)
}

// call runs a call of the library on one thread, because the text of an error belongs to its thread.
func call(work func() C.millpond_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := work(); status != C.MILLPOND_OK {
		return &Error{status, C.GoString(C.millpond_last_error())}
	}
	return nil
}

// Pool is a pool of host memory or of a device's memory.
type Pool struct{ handle *C.millpond_pool }

// NewPool creates a pool of host memory, or of pinned memory.
func NewPool(name string, memory C.uint32_t, limit uint64) (*Pool, error) {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	settings := C.CString("track:all,stacks:off")
	defer C.free(unsafe.Pointer(settings))
	// The options are in memory of C, because they contain pointers.
	options := (*C.millpond_pool_options)(C.calloc(1, C.sizeof_millpond_pool_options))
	defer C.free(unsafe.Pointer(options))
	options.size = C.sizeof_millpond_pool_options
	options.name, options.settings = text, settings
	options.memory, options.limit = memory, C.uint64_t(limit)
	pool := &Pool{}
	err := call(func() C.millpond_status { return C.millpond_pool_create(options, &pool.handle) })
	return pool, err
}

// NewDevicePool creates a pool of a device's memory.
func NewDevicePool(device uint32) (*Pool, error) {
	pool := &Pool{}
	err := call(func() C.millpond_status {
		return C.millpond_device_pool_create(C.uint32_t(device), nil, &pool.handle)
	})
	return pool, err
}

// Close destroys the pool. Blocks that are live can still be freed.
func (p *Pool) Close() error {
	return call(func() C.millpond_status { return C.millpond_pool_destroy(p.handle) })
}

// Stats returns the figures of the pool.
func (p *Pool) Stats() (C.millpond_pool_stats, error) {
	stats := C.millpond_pool_stats{size: C.sizeof_millpond_pool_stats}
	err := call(func() C.millpond_status { return C.millpond_pool_get_stats(p.handle, &stats) })
	return stats, err
}

// Report returns the figures and the live blocks as text.
func (p *Pool) Report() (string, error) {
	buffer := make([]byte, 1<<14)
	err := call(func() C.millpond_status {
		return C.millpond_pool_report(p.handle, (*C.char)(unsafe.Pointer(&buffer[0])), C.size_t(len(buffer)), nil)
	})
	return C.GoString((*C.char)(unsafe.Pointer(&buffer[0]))), err
}

// Floats allocates host memory, as a slice that Go's collector does not know. Free it with FreeFloats.
func (p *Pool) Floats(count int) ([]float32, error) {
	var block unsafe.Pointer
	err := call(func() C.millpond_status {
		return C.millpond_alloc(p.handle, C.size_t(count*4), 0, C.MILLPOND_ZEROED, &block)
	})
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*float32)(block), count), nil
}

// FreeFloats frees what Floats has returned.
func (p *Pool) FreeFloats(values []float32) error {
	return call(func() C.millpond_status { return C.millpond_free(p.handle, unsafe.Pointer(&values[0])) })
}

// DevicePtr is the address of device memory, which Go must not follow.
type DevicePtr uintptr

func (d DevicePtr) raw() unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&d)) }

// Malloc allocates device memory on the default stream.
func (p *Pool) Malloc(bytes int) (DevicePtr, error) {
	var block unsafe.Pointer
	err := call(func() C.millpond_status { return C.millpond_device_alloc(p.handle, C.size_t(bytes), nil, &block) })
	return DevicePtr(block), err
}

// Free frees device memory on the default stream.
func (p *Pool) Free(block DevicePtr) error {
	return call(func() C.millpond_status { return C.millpond_device_free(p.handle, block.raw(), nil) })
}

// MemcpyHtoD copies floats to the device.
func (p *Pool) MemcpyHtoD(block DevicePtr, from []float32) error {
	return call(func() C.millpond_status {
		return C.millpond_device_write(p.handle, block.raw(), 0, unsafe.Pointer(&from[0]), C.size_t(len(from)*4))
	})
}

// MemcpyDtoH copies floats from the device.
func (p *Pool) MemcpyDtoH(to []float32, block DevicePtr) error {
	return call(func() C.millpond_status {
		return C.millpond_device_read(p.handle, block.raw(), 0, unsafe.Pointer(&to[0]), C.size_t(len(to)*4))
	})
}

func basicMemory() error {
	pool, err := NewDevicePool(0)
	if err != nil {
		fmt.Println("no device:", err)
		return nil
	}
	defer pool.Close()
	data, result := make([]float32, 1<<20), make([]float32, 1<<20)
	for at := range data {
		data[at] = float32(at % 100)
	}
	block, err := pool.Malloc(len(data) * 4)
	if err != nil {
		return err
	}
	defer pool.Free(block)
	if err := pool.MemcpyHtoD(block, data); err != nil {
		return err
	}
	if err := pool.MemcpyDtoH(result, block); err != nil {
		return err
	}
	for at := range data {
		if result[at] != data[at] {
			return fmt.Errorf("element %d is %v", at, result[at])
		}
	}
	// A wrong pointer is an error.
	fmt.Println("a wrong free:", pool.Free(block+256) != nil)
	fmt.Println("copied to the device and back:", len(result))
	return nil
}

func memoryPool() error {
	pool, err := NewPool("buffers", C.MILLPOND_MEMORY_HOST, 0)
	if err != nil {
		return err
	}
	defer pool.Close()
	var wait sync.WaitGroup
	failures := make(chan error, 4)
	for worker := 0; worker < 4; worker++ {
		wait.Add(1)
		go func() {
			defer wait.Done()
			var blocks [][]float32
			for number := 0; number < 100; number++ {
				block, err := pool.Floats(256 * (number%10 + 1))
				if err != nil {
					failures <- err
					return
				}
				block[0] = 1
				blocks = append(blocks, block)
			}
			for _, block := range blocks {
				if err := pool.FreeFloats(block); err != nil {
					failures <- err
					return
				}
			}
		}()
	}
	wait.Wait()
	close(failures)
	if err := <-failures; err != nil {
		return err
	}
	stats, err := pool.Stats()
	if err != nil {
		return err
	}
	fmt.Printf("pool: %d allocations, %d frees, %d bytes in use\n", stats.allocations, stats.frees, stats.requested)
	return nil
}

func pinnedAndBatches() error {
	pool, err := NewPool("pinned", C.MILLPOND_MEMORY_PINNED, 1<<20)
	if errors.Is(err, ErrOutOfMemory) {
		fmt.Println("pinned: the system allows no locked memory")
		return nil
	} else if err != nil {
		return err
	}
	defer pool.Close()
	const batch, total = 1000, 10500
	buffer, err := pool.Floats(batch)
	if errors.Is(err, ErrOutOfMemory) {
		fmt.Println("pinned: the system allows no locked memory")
		return nil
	} else if err != nil {
		return err
	}
	defer pool.FreeFloats(buffer)
	sum := 0.0
	for begin := 0; begin < total; begin += batch {
		part := buffer
		if total-begin < batch {
			part = buffer[:total-begin]
		}
		for at := range part {
			part[at] = 1.5
			sum += float64(part[at])
		}
	}
	fmt.Println("batches:", sum)
	_, err = pool.Floats(1 << 20)
	fmt.Println("beyond the limit:", errors.Is(err, ErrOutOfMemory))
	return nil
}

// particles is a structure of arrays: each field has its own memory.
type particles struct{ x, y, vx, vy []float32 }

func leaks() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tag := C.CString("particles")
	defer C.free(unsafe.Pointer(tag))
	pool, err := NewPool("simulation", C.MILLPOND_MEMORY_HOST, 0)
	if err != nil {
		return err
	}
	if err := call(func() C.millpond_status { return C.millpond_tag_push(tag) }); err != nil {
		return err
	}
	var p particles
	for _, field := range []*[]float32{&p.x, &p.y, &p.vx, &p.vy} {
		if *field, err = pool.Floats(10000); err != nil {
			return err
		}
	}
	if err := call(func() C.millpond_status { return C.millpond_tag_pop() }); err != nil {
		return err
	}
	for at := range p.x {
		p.x[at] += p.vx[at]
		p.y[at] += p.vy[at]
	}
	for _, field := range [][]float32{p.x, p.y, p.vx} {
		if err := pool.FreeFloats(field); err != nil {
			return err
		}
	}
	report, err := pool.Report()
	if err != nil {
		return err
	}
	fmt.Println(report)
	fmt.Println("a double free:", pool.FreeFloats(p.x) != nil)
	// The block that was forgotten is freed after the pool was destroyed.
	if err := pool.Close(); err != nil {
		return err
	}
	return pool.FreeFloats(p.vy)
}

func main() {
	for _, part := range []func() error{basicMemory, memoryPool, pinnedAndBatches, leaks} {
		if err := part(); err != nil {
			fmt.Fprintln(os.Stderr, "failed:", err)
			os.Exit(1)
		}
	}
}
