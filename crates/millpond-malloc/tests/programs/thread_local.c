// A library with a thread local.
__thread int counter = 1;

int count(void) { return counter++; }
