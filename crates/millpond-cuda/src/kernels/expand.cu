// Words without their zeros, put back where they were.
//
// Groups of 1,024 words. In `packed` there is for each group where its words begin among all that are kept, then for each 32 bits
// that say which of its words are kept, then the words themselves.

constexpr u32 GROUP = 1024;

extern "C" __global__ void millpond_expand(u32 *to, const u32 *packed, u64 groups, u64 kept) {
    const u32 *maps = packed + groups, *words = maps + groups * (GROUP / 32);
    EACH(number, groups * GROUP) {
        u64 group = number / GROUP;
        u32 at = (u32)(number % GROUP);
        const u32 *map = maps + group * (GROUP / 32);
        u32 place = packed[group], bits = map[at / 32];
        for (u32 before = 0; before < at / 32; before++)
            place += __popc(map[before]);
        place += __popc(bits & ((1u << (at % 32)) - 1));
        bool is_kept = (bits >> (at % 32) & 1) && place < kept;
        to[number] = is_kept ? words[place] : 0;
    }
}
