module example.com/millpond-memory

go 1.19
