package natstest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// RawMessage is a message with any bytes as its headers. Clients refuse to send it, the server does not.
type RawMessage struct{ Subject, Header, Data string }

// PublishRaw publishes without a client, as the user if it is not empty, and returns once the server has received the
// messages. Streams store them soon after that, and before any message that is published later.
func PublishRaw(tb testing.TB, serverURL, user, password string, messages ...RawMessage) {
	tb.Helper()
	address, err := url.Parse(serverURL)
	require.NoError(tb, err)
	conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(tb.Context(), "tcp", address.Host)
	require.NoError(tb, err)
	defer func() { require.NoError(tb, conn.Close()) }()
	require.NoError(tb, conn.SetDeadline(time.Now().Add(time.Minute)))
	options, err := json.Marshal(map[string]any{"user": user, "pass": password, "headers": true, "verbose": false})
	require.NoError(tb, err)
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "CONNECT %s\r\n", options)
	for _, m := range messages {
		fmt.Fprintf(out, "HPUB %s %d %d\r\n%s%s\r\n",
			m.Subject, len(m.Header), len(m.Header)+len(m.Data), m.Header, m.Data)
	}
	fmt.Fprint(out, "PING\r\n")
	_, err = conn.Write(out.Bytes())
	require.NoError(tb, err)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		require.False(tb, strings.HasPrefix(lines.Text(), "-ERR"), lines.Text())
		if lines.Text() == "PONG" {
			return
		}
	}
	require.Fail(tb, "the server does not answer")
}
