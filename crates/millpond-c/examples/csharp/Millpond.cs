// The library for C#, by P/Invoke.
using System;
using System.Runtime.InteropServices;
using System.Text;

namespace Millpond
{
    public enum Status
    {
        Ok, InvalidArgument, InvalidHandle, InvalidPointer, OutOfMemory, TooLarge, InUse, CudaError, SystemError, Broken, Internal, Truncated
    }

    /// A call failed.
    public class MillpondException : Exception
    {
        public readonly Status Status;
        public MillpondException(Status status, string text) : base(text) { Status = status; }
    }

    [StructLayout(LayoutKind.Sequential)]
    public struct PoolOptions
    {
        public UIntPtr Size;
        public IntPtr Name;
        public IntPtr Settings;
        public ulong Limit;
        public IntPtr Budget;
        public uint Memory;
        public uint Reserved;
    }

    [StructLayout(LayoutKind.Sequential)]
    public struct PoolStats
    {
        public UIntPtr Size;
        public ulong Requested, RequestedPeak, Allocated, AllocatedPeak, Reserved, ReservedPeak, Waiting;
        public ulong Allocations, Frees, Hits, Refusals, Limit;
        public double HitRate { get { return Allocations == 0 ? 0 : (double)Hits / Allocations; } }
    }

    internal static class Native
    {
        const string Library = "libmillpond.so.0";
        [DllImport(Library)] internal static extern IntPtr millpond_last_error();
        [DllImport(Library)] internal static extern Status millpond_pool_create(ref PoolOptions options, out IntPtr pool);
        [DllImport(Library)] internal static extern Status millpond_device_count(out uint count);
        [DllImport(Library)] internal static extern Status millpond_device_pool_create(uint device, ref PoolOptions options, out IntPtr pool);
        [DllImport(Library)] internal static extern Status millpond_pool_destroy(IntPtr pool);
        [DllImport(Library)] internal static extern Status millpond_pool_get_stats(IntPtr pool, ref PoolStats stats);
        [DllImport(Library)] internal static extern Status millpond_pool_trim(IntPtr pool);
        [DllImport(Library)] internal static extern Status millpond_pool_report(IntPtr pool, byte[] buffer, UIntPtr capacity, out UIntPtr length);
        [DllImport(Library)] internal static extern Status millpond_alloc(IntPtr pool, UIntPtr bytes, UIntPtr align, uint flags, out IntPtr block);
        [DllImport(Library)] internal static extern Status millpond_free(IntPtr pool, IntPtr block);
        [DllImport(Library)] internal static extern Status millpond_device_alloc(IntPtr pool, UIntPtr bytes, IntPtr stream, out IntPtr block);
        [DllImport(Library)] internal static extern Status millpond_device_free(IntPtr pool, IntPtr block, IntPtr stream);
        [DllImport(Library)] internal static extern Status millpond_device_write(IntPtr pool, IntPtr block, UIntPtr offset, IntPtr from, UIntPtr bytes);
        [DllImport(Library)] internal static extern Status millpond_device_read(IntPtr pool, IntPtr block, UIntPtr offset, IntPtr to, UIntPtr bytes);

        /// Throws if a call failed. The text belongs to the thread of the call, which is this one.
        internal static void Check(Status status)
        {
            if (status != Status.Ok)
                throw new MillpondException(status, Utf8(millpond_last_error()));
        }

        static string Utf8(IntPtr text)
        {
            int length = 0;
            while (Marshal.ReadByte(text, length) != 0) length++;
            var bytes = new byte[length];
            Marshal.Copy(text, bytes, 0, length);
            return Encoding.UTF8.GetString(bytes);
        }
    }

    /// A pool of host memory, of pinned memory, or of a device.
    public sealed class Pool : IDisposable
    {
        public const uint Host = 0, Pinned = 1;
        internal readonly IntPtr Handle;
        internal readonly bool IsDevice;
        bool disposed;

        public Pool(string name, uint memory = Host, ulong limit = 0, uint? device = null)
        {
            // The texts are needed during the call only.
            var text = Marshal.StringToHGlobalAnsi(name);
            var settings = Marshal.StringToHGlobalAnsi("track:all,stacks:off");
            try
            {
                var options = new PoolOptions { Name = text, Settings = settings, Limit = limit, Memory = memory };
                options.Size = (UIntPtr)(uint)Marshal.SizeOf(typeof(PoolOptions));
                IsDevice = device.HasValue;
                Native.Check(IsDevice
                    ? Native.millpond_device_pool_create(device.Value, ref options, out Handle)
                    : Native.millpond_pool_create(ref options, out Handle));
            }
            finally
            {
                Marshal.FreeHGlobal(text);
                Marshal.FreeHGlobal(settings);
            }
        }

        public static uint Devices()
        {
            uint count;
            return Native.millpond_device_count(out count) == Status.Ok ? count : 0;
        }

        public PoolStats Stats()
        {
            var stats = new PoolStats { Size = (UIntPtr)(uint)Marshal.SizeOf(typeof(PoolStats)) };
            Native.Check(Native.millpond_pool_get_stats(Handle, ref stats));
            return stats;
        }

        public string Report()
        {
            UIntPtr length;
            Native.Check(Native.millpond_pool_report(Handle, null, UIntPtr.Zero, out length));
            // A little more, because the pool may be in use.
            var buffer = new byte[(int)length + 1024];
            Native.Check(Native.millpond_pool_report(Handle, buffer, (UIntPtr)(uint)buffer.Length, out length));
            return Encoding.UTF8.GetString(buffer, 0, (int)length);
        }

        public void Trim() { Native.Check(Native.millpond_pool_trim(Handle)); }

        /// Destroys the pool. Buffers of it stay valid until they are disposed of.
        public void Dispose()
        {
            if (disposed) return;
            disposed = true;
            Native.Check(Native.millpond_pool_destroy(Handle));
        }
    }

    /// Floats in a pool's memory.
    public sealed unsafe class Buffer : IDisposable
    {
        readonly Pool pool;
        IntPtr block;
        public readonly int Length;

        public Buffer(Pool pool, int length)
        {
            this.pool = pool;
            Length = length;
            var bytes = (UIntPtr)((ulong)length * 4);
            Native.Check(pool.IsDevice
                ? Native.millpond_device_alloc(pool.Handle, bytes, IntPtr.Zero, out block)
                : Native.millpond_alloc(pool.Handle, bytes, UIntPtr.Zero, 1, out block));
        }

        /// The floats of host memory.
        public float* Pointer
        {
            get
            {
                if (pool.IsDevice) throw new InvalidOperationException("the host cannot read memory of a device");
                if (block == IntPtr.Zero) throw new ObjectDisposedException("Buffer");
                return (float*)block;
            }
        }

        /// Copies from a buffer of the host to this buffer of a device.
        public void CopyFrom(Buffer host)
        {
            var bytes = (UIntPtr)((ulong)host.Length * 4);
            Native.Check(Native.millpond_device_write(pool.Handle, block, UIntPtr.Zero, (IntPtr)host.Pointer, bytes));
        }

        /// Copies from this buffer of a device to a buffer of the host.
        public void CopyTo(Buffer host)
        {
            var bytes = (UIntPtr)((ulong)host.Length * 4);
            Native.Check(Native.millpond_device_read(pool.Handle, block, UIntPtr.Zero, (IntPtr)host.Pointer, bytes));
        }

        public void Dispose()
        {
            if (block == IntPtr.Zero) return;
            var old = block;
            block = IntPtr.Zero;
            Native.Check(pool.IsDevice
                ? Native.millpond_device_free(pool.Handle, old, IntPtr.Zero)
                : Native.millpond_free(pool.Handle, old));
        }
    }
}
