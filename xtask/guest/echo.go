// A server that echoes and a client of it: a thousand round trips, then silence, in which both use no CPU.
package main

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
}

func cpu() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func echo(listener net.Listener) {
	for {
		from, err := listener.Accept()
		check(err)
		go func() {
			bytes := make([]byte, 100)
			for {
				n, err := from.Read(bytes)
				if err != nil {
					return
				}
				from.Write(bytes[:n])
			}
		}()
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go echo(listener)
	client, err := net.Dial("tcp", listener.Addr().String())
	check(err)
	bytes := make([]byte, 100)
	for i := 0; i < 1000; i++ {
		_, err = client.Write([]byte("hello"))
		check(err)
		n, err := client.Read(bytes)
		check(err)
		if string(bytes[:n]) != "hello" {
			fmt.Println("FAILED: an answer of", n, "bytes")
		}
	}
	// A host that is busy takes time from this thread while it looks at the clock: one of several
	// tries tells.
	const quiet = time.Second
	for try := 0; try < 10; try++ {
		before := cpu()
		time.Sleep(quiet)
		used := cpu() - before
		fmt.Println("idle for", quiet, "with", used, "of CPU")
		if used < quiet/100 {
			fmt.Println("under one hundredth")
			return
		}
	}
}
