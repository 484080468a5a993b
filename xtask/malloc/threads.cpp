// Four threads allocate and free strings, vectors and maps of many sizes, and free what other threads allocated. Prints a checksum that
// does not depend on the order of the threads.
#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

constexpr unsigned THREADS = 4;
constexpr unsigned ROUNDS = 1500000;
constexpr unsigned KEPT = 20000;
constexpr unsigned BATCH = 1000;

using Strings = std::vector<std::string>;

struct Inbox {
    std::mutex lock;
    std::vector<Strings> batches;
};

Inbox inboxes[THREADS];
std::uint64_t sums[THREADS];

// Frees the strings of a batch after a check of their contents.
std::uint64_t consume(Strings batch) {
    std::uint64_t sum = 0;
    for (const std::string &text : batch)
        for (unsigned char byte : text)
            sum += byte;
    return sum;
}

std::uint64_t receive(Inbox &inbox) {
    std::vector<Strings> batches;
    {
        std::lock_guard<std::mutex> guard(inbox.lock);
        batches.swap(inbox.batches);
    }
    std::uint64_t sum = 0;
    for (Strings &batch : batches)
        sum += consume(std::move(batch));
    return sum;
}

void work(unsigned id) {
    std::mt19937 random(id);
    Strings kept(KEPT), batch;
    std::unordered_map<unsigned, std::vector<unsigned>> table;
    std::map<std::string, std::string> tree;
    std::uint64_t sum = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned size = random() % 100 == 0 ? random() % 20000 : random() % 300 + 1;
        std::string text(size, char('a' + round % 26));
        if (round % 4 == 0) {
            batch.push_back(std::move(text));
            if (batch.size() == BATCH) {
                Inbox &next = inboxes[(id + 1) % THREADS];
                {
                    std::lock_guard<std::mutex> guard(next.lock);
                    next.batches.push_back(std::move(batch));
                }
                batch = Strings();
                sum += receive(inboxes[id]);
            }
        } else {
            std::string &place = kept[random() % KEPT];
            sum += place.size();
            place = std::move(text);
        }
        if (round % 4 == 1) {
            std::vector<unsigned> &list = table[random() % 5000];
            list.push_back(round);
            if (list.size() > 50)
                table.erase(random() % 5000);
        }
        if (round % 8 == 2) {
            tree[std::to_string(random() % 20000)] = kept[random() % KEPT].substr(0, 40);
            if (tree.size() > 10000)
                tree.erase(tree.begin());
        }
    }
    for (auto &entry : table)
        for (unsigned number : entry.second)
            sum += number;
    for (auto &entry : tree)
        sum += entry.second.size();
    sums[id] = sum + consume(std::move(batch)) + consume(std::move(kept));
}

int main() {
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < THREADS; id++)
        threads.emplace_back(work, id);
    std::uint64_t sum = 0;
    for (unsigned id = 0; id < THREADS; id++) {
        threads[id].join();
        sum += sums[id];
    }
    for (Inbox &inbox : inboxes)
        sum += receive(inbox);
    std::printf("%llu\n", (unsigned long long)sum);
}
