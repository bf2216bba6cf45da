// Memory errors of C++, one a function; the comments are as in bugs.c.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>
#include "others.h"

#define NEVER __attribute__((noinline, noipa))
static volatile int sink;
static volatile std::size_t zero;
template <class T> static NEVER T *hide(T *p) { T *volatile held = p; return held; }

static NEVER void vector_index() {
    std::vector<int> all(16, 1); // vector_index allocated
    sink = all[16 + zero]; // vector_index error
}
static NEVER void stale_iterator() {
    std::vector<long> all{1, 2, 3, 4}; // stale_iterator allocated
    long *first = hide(all.data());
    all.push_back(5); // stale_iterator freed
    sink = (int)*first; // stale_iterator error
}
static NEVER void dangling_view() {
    auto *text = new std::string(100, 'x'); // dangling_view allocated
    std::string_view view = *text;
    delete text; // dangling_view freed
    sink = view[50]; // dangling_view error
}
struct Base { virtual ~Base() = default; virtual int value() { return 1; } long data[4] = {}; };
struct Derived : Base { int value() override { return 2; } };
static NEVER void deleted_object() {
    Base *object = hide<Base>(new Derived); // deleted_object allocated
    delete object; // deleted_object freed
    sink = object->value(); // deleted_object error
}
static NEVER void double_delete() {
    int *p = hide(new int[10]); // double_delete allocated
    delete[] p; // double_delete freed
    delete[] hide(p); // double_delete error
}
static NEVER void array_write() {
    auto *p = hide(new double[8]); // array_write allocated
    p[8 + zero] = 1; // array_write error
    delete[] p;
}
static NEVER void captured_reference() {
    auto owner = std::make_unique<std::vector<int>>(100); // captured_reference allocated
    int *inside = hide(owner->data());
    auto later = [inside] { return *inside; }; // captured_reference error
    owner.reset();
    sink = later();
}
struct alignas(64) Line { char bytes[64]; };
static NEVER void aligned_new() {
    Line *lines = hide(new Line[2]); // aligned_new allocated
    std::memset(lines[0].bytes, 0, 129 + zero); // aligned_new error
    delete[] lines;
}
static NEVER void nothrow_new() {
    char *p = hide(new (std::nothrow) char[48]); // nothrow_new allocated
    p[48 + zero] = 1; // nothrow_new error
    delete[] p;
}
static NEVER void in_std_thread() {
    auto *p = hide(new int[4]); // in_std_thread allocated
    std::thread([p] { delete[] p; }).join(); // in_std_thread freed
    sink = p[1]; // in_std_thread error
}
static NEVER void in_destructor() {
    struct Holder { char *p; ~Holder() { sink = p[32 + zero]; } }; // in_destructor error
    try {
        Holder holder{hide(new char[32])}; // in_destructor allocated
        throw 1;
    } catch (int) {
    }
}

static NEVER void erased_iterator() {
    std::map<int, std::string> all{{1, "one"}, {2, "two"}, {3, "three"}};
    for (auto at = all.begin(); at != all.end(); ++at) // erased_iterator error
        if (at->first != 9) all.erase(at); // erased_iterator freed
}
static NEVER void map_node() {
    std::map<int, int> all{{1, 10}}; // map_node allocated
    int *value = hide(&all[1]);
    all.erase(1); // map_node freed
    *value = 11; // map_node error
}
static NEVER void late_function() {
    auto *object = new std::string("the owner of a callback"); // late_function allocated
    std::function<int()> callback = [object] { return (int)object->size(); }; // late_function error
    delete object; // late_function freed
    sink = callback();
}
static NEVER void small_array() {
    int *all = hide(new int[3]); // small_array allocated
    for (std::size_t i = 0; i <= 4 + zero; i++) all[i] = 1; // small_array error
    delete[] all;
}
static NEVER void wrong_object() {
    struct Small { long a[2]; };
    struct Large { long a[6]; };
    auto *object = reinterpret_cast<Large *>(hide(new Small)); // wrong_object allocated
    object->a[5] = 1; // wrong_object error
}
static NEVER void shared_gone() {
    auto owner = std::make_shared<std::vector<int>>(8, 1); // shared_gone allocated
    std::vector<int> &all = *hide(owner.get());
    owner.reset(); // shared_gone freed
    sink = (int)all.size(); // shared_gone error
}

int main(int argc, char **argv) {
    const struct { const char *name; int weakness; void (*run)(); } bugs[] = {
#define BUG(name, weakness) {#name, weakness, name}
        BUG(vector_index, 125), BUG(stale_iterator, 416), BUG(dangling_view, 416), BUG(deleted_object, 416),
        BUG(double_delete, 415), BUG(array_write, 122), BUG(captured_reference, 416), BUG(aligned_new, 122),
        BUG(nothrow_new, 122), BUG(in_std_thread, 416), BUG(in_destructor, 126), BUG(erased_iterator, 416),
        BUG(map_node, 416), BUG(late_function, 416), BUG(small_array, 122), BUG(wrong_object, 843),
        BUG(shared_gone, 416),
    };
    for (auto &bug : bugs)
        if (argc < 2) {
            std::printf("%s %d heap\n", bug.name, bug.weakness);
        } else if (!std::strcmp(argv[1], bug.name)) {
            int times = argc > 2 ? std::atoi(argv[2]) : 1;
            for (int done = 0; done < times; done++) {
                allocate_others(argc > 3 ? std::atol(argv[3]) / times : 0);
                bug.run();
            }
            return 0;
        }
    return argc < 2 ? 0 : 98;
}
