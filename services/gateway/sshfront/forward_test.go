package sshfront

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"

	"lockstep.internal/services/gateway/authority"
)

// connected returns both ends of an SSH connection.
func connected(t *testing.T) (client ssh.Conn, channels <-chan ssh.NewChannel) {
	t.Helper()
	key, err := authority.Generate()
	require.NoError(t, err)
	signer, err := ssh.ParsePrivateKey(key)
	require.NoError(t, err)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(signer)
	var listening net.ListenConfig
	listener, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	served := make(chan (<-chan ssh.NewChannel), 1)
	go func() {
		defer close(served)
		far, err := listener.Accept()
		if err != nil {
			return // the client reports it
		}
		conn, channels, requests, err := ssh.NewServerConn(far, config)
		if err != nil {
			return // the client reports it
		}
		go ssh.DiscardRequests(requests)
		t.Cleanup(func() { _ = conn.Close() })
		served <- channels
	}()
	var dialer net.Dialer
	near, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	client, offered, requests, err := ssh.NewClientConn(near, "test", &ssh.ClientConfig{
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	go ssh.DiscardRequests(requests)
	go func() {
		for range offered { // a client opens all channels
		}
	}()
	return client, <-served
}

// TestRequestIsAnsweredBeforeItsChannelIsClosed has commands that end at once.
func TestRequestIsAnsweredBeforeItsChannelIsClosed(t *testing.T) {
	t.Parallel()
	person, channels := connected(t)
	agent, sessions := connected(t)
	go func() {
		for offered := range sessions {
			channel, requests, err := offered.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				for request := range requests {
					_ = request.Reply(true, nil)
					_, _ = channel.SendRequest("exit-status", false, make([]byte, 4))
					_ = channel.Close()
				}
			}()
		}
	}()
	go func() {
		for offered := range channels {
			go forwardChannel(agent, offered, func(int) {}, func(int) {})
		}
	}()
	for range 2000 {
		session, requests, err := person.OpenChannel("session", nil)
		require.NoError(t, err)
		ok, err := session.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"true"}))
		require.NoError(t, err)
		require.True(t, ok)
		status, open := <-requests
		require.True(t, open)
		require.Equal(t, "exit-status", status.Type)
		ssh.DiscardRequests(requests)
	}
}
