package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// The measured process. It ends when its input closes.
type serverProcess struct {
	command *exec.Cmd
	input   io.Closer
	url     string
}

// The server's part of this program: as it is published, with its defaults, on a loopback port.
func serve(folder string) {
	nats, err := server.NewServer(&server.Options{
		Host:      "127.0.0.1",
		Port:      server.RANDOM_PORT,
		JetStream: true,
		StoreDir:  folder,
		// Memory is what is measured: none of the machine's is out of its reach.
		JetStreamMaxMemory: 64 << 30,
		JetStreamMaxStore:  1 << 40,
		NoSigs:             true,
		NoLog:              true,
	})
	if err != nil {
		panic(err)
	}
	nats.Start()
	if !nats.ReadyForConnections(time.Minute) {
		panic("the server does not listen")
	}
	fmt.Println(nats.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func startServer(folder string) (*serverProcess, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.Command(program, "server", folder)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	url, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the server ended before it listened: %w", err)
	}
	return &serverProcess{command, input, strings.TrimSpace(url)}, nil
}

func (running *serverProcess) stop() {
	_ = running.input.Close()
	_ = running.command.Process.Kill()
	_ = running.command.Wait()
}

// The most memory it has held.
func (running *serverProcess) peakRSSMiB() int {
	return procMiB(fmt.Sprintf("/proc/%d/status", running.command.Process.Pid), "VmHWM:")
}

// What this machine could still give to programs.
func availableMiB() int {
	return procMiB("/proc/meminfo", "MemAvailable:")
}

// A figure that the kernel tells in KiB.
func procMiB(file, name string) int {
	text, err := os.ReadFile(file)
	if err != nil {
		panic(err)
	}
	_, after, _ := strings.Cut(string(text), name)
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		panic(err)
	}
	return kib >> 10
}
