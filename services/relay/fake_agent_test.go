package relay_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/relay/agentlistener"
	"lockstep.internal/services/relay/tunnel"
)

// dialFakeAgent connects a minimal agent. It responds to HTTP with its id and the path.
func (f *fixture) dialFakeAgent(ctx context.Context, addr string, id int) (*tunnel.Session, error) {
	header := http.Header{}
	header.Set("Authorization", "Bearer "+f.token)
	header.Set(agentlistener.HeaderAgent, strconv.Itoa(id))
	c, err := tunnel.Dialer{NoProxy: true}.Dial(ctx, "ws://"+addr+"/tunnel", header)
	if err != nil {
		return nil, err
	}
	serve := func(s *tunnel.Stream) { serveFakeAgent(s, id) }
	s := tunnel.NewSession(c.Conn, true, false, tunnel.Config{Window: 64 << 10}, serve)
	go func() { _ = s.Serve() }()
	st, err := s.Open([]byte(agentlistener.ConfigStreamMetadata))
	if err == nil {
		_, err = st.Read(make([]byte, 1))
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

func serveFakeAgent(s *tunnel.Stream, id int) {
	defer s.Close()
	_ = s.Accept()
	requests := bufio.NewReader(s)
	for {
		r, err := http.ReadRequest(requests)
		if err != nil {
			return
		}
		body := fmt.Sprintf("%d %s", id, r.URL.Path)
		if _, err := fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			return
		}
	}
}

// connectFakeAgent waits until the relay knows the agent.
func (f *fixture) connectFakeAgent(addr string, id int) *tunnel.Session {
	f.t.Helper()
	var s *tunnel.Session
	require.Eventually(f.t, func() bool {
		var err error
		s, err = f.dialFakeAgent(f.t.Context(), addr, id)
		return err == nil
	}, timeout, pollInterval)
	f.t.Cleanup(func() { _ = s.Close() })
	return s
}
