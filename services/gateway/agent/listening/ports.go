// Package listening lists the TCP ports that programs of a container listen on, as the kernel reports them in
// /proc/net/tcp and /proc/net/tcp6. Linux only.
package listening

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Port is a TCP port with a listener.
type Port struct {
	Number int `json:"number"`
	// Loopback is true if every listener of the port accepts connections from the same container only.
	Loopback bool `json:"loopback"`
}

// stateListen is the state of a listener in the kernel's table.
//
// See https://docs.kernel.org/networking/proc_net_tcp.html.
const stateListen = "0A"

// Ports returns the ports of this container in ascending order.
func Ports() ([]Port, error) {
	var all []Port
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("list open ports: %w", err)
		}
		ports, err := Parse(file)
		_ = file.Close() // it was only read
		if err != nil {
			return nil, fmt.Errorf("list open ports: %s: %w", path, err)
		}
		all = append(all, ports...)
	}
	return merge(all), nil
}

// Parse reads a table of the kernel. A port is there once for each of its addresses.
func Parse(table io.Reader) ([]Port, error) {
	var ports []Port
	lines := bufio.NewScanner(table)
	for first := true; lines.Scan(); first = false {
		if first {
			continue // the names of the columns
		}
		// sl local_address rem_address st …
		columns := strings.Fields(lines.Text())
		if len(columns) < 4 || columns[3] != stateListen {
			continue
		}
		address, number, found := strings.Cut(columns[1], ":")
		port, err := strconv.ParseUint(number, 16, 16)
		if !found || err != nil {
			return nil, fmt.Errorf("the address %q has no port", columns[1])
		}
		loopback, err := isLoopback(address)
		if err != nil {
			return nil, err
		}
		ports = append(ports, Port{Number: int(port), Loopback: loopback})
	}
	return ports, lines.Err() //nolint:wrapcheck // the caller names the file
}

// isLoopback reads an address as the kernel writes it: groups of four bytes, each in the order of the processor, here
// little endian.
func isLoopback(address string) (bool, error) {
	bytes, err := hex.DecodeString(address)
	if err != nil || (len(bytes) != 4 && len(bytes) != 16) {
		return false, fmt.Errorf("%q is not an address", address)
	}
	for group := range slices.Chunk(bytes, 4) {
		slices.Reverse(group)
	}
	if len(bytes) == 4 {
		return bytes[0] == 127, nil
	}
	mapped := slices.Equal(bytes[:12], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
	one := slices.Equal(bytes, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	return one || mapped && bytes[12] == 127, nil
}

// merge returns each port once.
func merge(ports []Port) []Port {
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Compare(a.Number, b.Number) })
	merged := []Port{}
	for _, p := range ports {
		if last := len(merged) - 1; last >= 0 && merged[last].Number == p.Number {
			merged[last].Loopback = merged[last].Loopback && p.Loopback
			continue
		}
		merged = append(merged, p)
	}
	return merged
}
