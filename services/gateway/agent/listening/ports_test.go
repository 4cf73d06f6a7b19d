package listening

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func TestListenersOfTheTableAreParsed(t *testing.T) {
	for name, c := range map[string]struct {
		lines string
		want  []Port
	}{
		"all addresses":        {"0: 00000000:1F90 00000000:0000 0A 00000000:00000000", []Port{{8080, false}}},
		"loopback":             {"0: 0100007F:0BB8 00000000:0000 0A 00000000:00000000", []Port{{3000, true}}},
		"a connection":         {"0: 0100007F:0BB8 0100007F:C350 01 00000000:00000000", nil},
		"all IPv6 addresses":   {"0: 00000000000000000000000000000000:0016 0:0 0A 0:0", []Port{{22, false}}},
		"IPv6 loopback":        {"0: 00000000000000000000000001000000:0016 0:0 0A 0:0", []Port{{22, true}}},
		"IPv4 loopback mapped": {"0: 0000000000000000FFFF00000100007F:0016 0:0 0A 0:0", []Port{{22, true}}},
		"a short line":         {"0:", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(strings.NewReader(header + c.lines + "\n"))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestInvalidTableIsAnError(t *testing.T) {
	for _, line := range []string{"0: 0100007F 0:0 0A", "0: 01:0016 0:0 0A", "0: zz00007F:0016 0:0 0A"} {
		_, err := Parse(strings.NewReader(header + line + "\n"))
		require.Error(t, err, line)
	}
}

func TestPortIsLoopbackOnlyIfAllItsListenersAre(t *testing.T) {
	require.Equal(t, []Port{{22, false}, {80, true}},
		merge([]Port{{80, true}, {22, true}, {22, false}, {80, true}}))
}

func TestOwnListenersAreListed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	ports, err := Ports()
	require.NoError(t, err)
	address, ok := listener.Addr().(*net.TCPAddr)
	require.True(t, ok)
	require.True(t, slices.Contains(ports, Port{address.Port, true}), "%v", ports)
}
