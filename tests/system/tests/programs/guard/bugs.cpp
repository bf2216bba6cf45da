// Memory errors of C++, one a function; the comments are as in bugs.c.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

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

int main(int argc, char **argv) {
    struct { const char *name; void (*run)(); } bugs[] = {
#define BUG(name) {#name, name}
        BUG(vector_index), BUG(stale_iterator), BUG(dangling_view), BUG(deleted_object), BUG(double_delete),
        BUG(array_write), BUG(captured_reference), BUG(aligned_new), BUG(nothrow_new), BUG(in_std_thread),
        BUG(in_destructor),
    };
    for (auto &bug : bugs)
        if (argc > 1 && !std::strcmp(argv[1], bug.name)) {
            bug.run();
            return 0;
        }
    return 98;
}
