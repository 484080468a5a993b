// Memory optimisation in DotCompute's way: a pool and its hit rate, buffers that are allocated once, rented buffers, copies from pinned
// memory, a structure of arrays, a monitor, and the search for leaks.
//
//   mcs -unsafe Millpond.cs Program.cs -out:memory.exe && LD_LIBRARY_PATH=... mono memory.exe
using System;
using System.Collections.Concurrent;
using System.Threading;
using Millpond;
using Buffer = Millpond.Buffer;

/// Allocates its buffers once.
sealed unsafe class ImageProcessor : IDisposable
{
    readonly Buffer input, output;

    public ImageProcessor(Pool pool, int size)
    {
        input = new Buffer(pool, size);
        output = new Buffer(pool, size);
    }

    public float Process(float[] image)
    {
        float sum = 0;
        for (int at = 0; at < image.Length; at++) input.Pointer[at] = image[at];
        for (int at = 0; at < image.Length; at++) output.Pointer[at] = input.Pointer[at] * 0.5f;
        for (int at = 0; at < image.Length; at++) sum += output.Pointer[at];
        return sum;
    }

    public void Dispose()
    {
        input.Dispose();
        output.Dispose();
    }
}

/// Rents buffers by classes of sizes.
sealed class BufferRental : IDisposable
{
    readonly Pool pool;
    readonly ConcurrentDictionary<int, ConcurrentBag<Buffer>> classes = new ConcurrentDictionary<int, ConcurrentBag<Buffer>>();

    public BufferRental(Pool pool) { this.pool = pool; }

    static int SizeOf(int least)
    {
        int size = 256;
        while (size < least) size *= 4;
        return size;
    }

    public Buffer Rent(int least)
    {
        int size = SizeOf(least);
        Buffer buffer;
        return classes.GetOrAdd(size, _ => new ConcurrentBag<Buffer>()).TryTake(out buffer) ? buffer : new Buffer(pool, size);
    }

    public void Return(Buffer buffer) { classes[buffer.Length].Add(buffer); }

    public void Dispose()
    {
        foreach (var bag in classes.Values)
            foreach (var buffer in bag) buffer.Dispose();
    }
}

static unsafe class Program
{
    static void Rentals(Pool pool)
    {
        using (var rental = new BufferRental(pool))
        {
            var threads = new Thread[4];
            for (int number = 0; number < threads.Length; number++)
            {
                threads[number] = new Thread(() =>
                {
                    for (int round = 0; round < 250; round++)
                    {
                        var buffer = rental.Rent(100 + round * 7 % 2000);
                        buffer.Pointer[0] = round;
                        rental.Return(buffer);
                    }
                });
                threads[number].Start();
            }
            foreach (var thread in threads) thread.Join();
        }
    }

    static void Device()
    {
        if (Pool.Devices() == 0)
        {
            Console.WriteLine("no device");
            return;
        }
        const int size = 100000;
        using (var device = new Pool("gpu", device: 0))
        using (var pinned = new Pool("staging", Pool.Host))
        using (var there = new Buffer(device, size))
        using (var from = new Buffer(pinned, size))
        using (var to = new Buffer(pinned, size))
        {
            for (int at = 0; at < size; at++) from.Pointer[at] = at;
            there.CopyFrom(from);
            there.CopyTo(to);
            bool same = true;
            for (int at = 0; at < size; at++) same &= from.Pointer[at] == to.Pointer[at];
            Console.WriteLine("device: " + (same ? "copied there and back" : "WRONG DATA"));
            // What is wrong is an exception, and not a crash.
            try
            {
                using (var small = new Buffer(device, 10)) small.CopyFrom(from);
            }
            catch (MillpondException wrong)
            {
                Console.WriteLine("a copy beyond a buffer: " + wrong.Status);
            }
        }
    }

    static int Main()
    {
        try
        {
            using (var pool = new Pool("dotcompute", limit: 64UL << 20))
            {
                for (int round = 0; round < 100; round++)
                    using (var buffer = new Buffer(pool, 1 << 18)) buffer.Pointer[0] = round;
                var stats = pool.Stats();
                Console.WriteLine("hit rate: {0:F2} of {1} allocations", stats.HitRate, stats.Allocations);

                using (var processor = new ImageProcessor(pool, 1000))
                {
                    var image = new float[1000];
                    for (int at = 0; at < image.Length; at++) image[at] = 2;
                    float sum = 0;
                    for (int frame = 0; frame < 10; frame++) sum = processor.Process(image);
                    Console.WriteLine("processed: " + sum);
                }
                Rentals(pool);

                // A structure of arrays.
                const int count = 1000;
                using (Buffer x = new Buffer(pool, count), velocity = new Buffer(pool, count))
                {
                    for (int at = 0; at < count; at++) velocity.Pointer[at] = 2;
                    for (int step = 0; step < 3; step++)
                        for (int at = 0; at < count; at++) x.Pointer[at] += velocity.Pointer[at] * 0.5f;
                    Console.WriteLine("position: " + x.Pointer[count - 1]);
                }

                // The monitor: how much of the limit is in use.
                using (var most = new Buffer(pool, 15 << 20))
                {
                    stats = pool.Stats();
                    Console.WriteLine("in use: {0:F0} %", 100.0 * stats.Reserved / stats.Limit);
                    if (stats.Reserved > stats.Limit * 0.9) Console.WriteLine("warning: more than 90 % of the limit is in use");
                    try
                    {
                        new Buffer(pool, 8 << 20).Dispose();
                    }
                    catch (MillpondException refused)
                    {
                        Console.WriteLine("refused: " + refused.Status + ": " + refused.Message.Split('\n')[0]);
                    }
                }
                pool.Trim();

                // A buffer that was not disposed of is a live block of the report.
                var leaked = new Buffer(pool, 5000);
                Console.WriteLine(pool.Report());
                leaked.Dispose();
                Console.WriteLine("left in use: " + pool.Stats().Requested);
            }
            Device();
            return 0;
        }
        catch (MillpondException failed)
        {
            Console.Error.WriteLine("failed: " + failed.Status + ": " + failed.Message);
            return 1;
        }
    }
}
