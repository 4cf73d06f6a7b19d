package sshserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"lockstep.internal/libs/logkey"
)

const (
	// dialTimeout of connections that are forwarded from the client.
	dialTimeout = 10 * time.Second
	// maxListeners is the number of ports that a client may forward to itself.
	maxListeners = 16
	loopback     = "127.0.0.1"
)

// target is the address of a forwarded connection, and where it comes from (RFC 4254, section 7.2).
type target struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// forward connects the client with an address that the workspace can reach: its own programs above all, also those
// that listen on the loopback address.
func (c *connection) forward(ctx context.Context, channel ssh.NewChannel) {
	var to target
	if ssh.Unmarshal(channel.ExtraData(), &to) != nil || to.Port == 0 || to.Port > 65535 {
		c.reject(ctx, channel, ssh.ConnectionFailed, "the address is not valid")
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		c.reject(ctx, channel, ssh.ConnectionFailed, err.Error())
		return
	}
	accepted, requests, err := channel.Accept()
	if err != nil {
		_ = conn.Close()
		return // the client has left
	}
	c.running.Go(func() { ssh.DiscardRequests(requests) })
	join(ctx, accepted, conn)
}

// halfCloser is a connection whose directions end one by one.
type halfCloser interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// join copies both ways until both directions have ended, or the context.
func join(ctx context.Context, a ssh.Channel, b net.Conn) {
	both := func() {
		_ = a.Close()
		_ = b.Close()
	}
	stop := context.AfterFunc(ctx, both)
	defer stop()
	defer both()
	half, ok := b.(halfCloser)
	if !ok {
		return // TCP and Unix connections are all that is joined
	}
	var copies sync.WaitGroup
	copies.Go(func() { transfer(a, half) })
	copies.Go(func() { transfer(half, a) })
	copies.Wait()
}

// transfer copies one direction. After an error the other one cannot be of use, either.
func transfer(to, from halfCloser) {
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		_ = from.Close()
		return
	}
	_ = to.CloseWrite()
}

// listenRequest is the address of a listener for the client (RFC 4254, section 7.1).
type listenRequest struct {
	Host string
	Port uint32
}

// listen opens a port in the workspace whose connections reach the client. It listens on the loopback address only,
// whatever the client asks for, as OpenSSH does by default.
func (c *connection) listen(ctx context.Context, payload []byte) (answer []byte, ok bool) {
	var request listenRequest
	if ssh.Unmarshal(payload, &request) != nil || request.Port > 65535 || !c.may(permitPortForwarding) {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.listeners) >= maxListeners {
		return nil, false
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(loopback, strconv.Itoa(int(request.Port))))
	if err != nil {
		c.log.InfoContext(ctx, "forward a port to the client", logkey.Error(err))
		return nil, false
	}
	address, isTCP := listener.Addr().(*net.TCPAddr)
	if !isTCP {
		_ = listener.Close()
		return nil, false
	}
	if request.Port == 0 { // the client wants to know which it got
		answer = ssh.Marshal(struct{ Port uint32 }{uint32(address.Port)})
		request.Port = uint32(address.Port)
	}
	c.listeners[key(request)] = listener
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	c.running.Go(func() {
		defer stop()
		c.accept(ctx, listener, "forwarded-tcpip", func(from net.Conn) []byte {
			origin := target{Host: request.Host, Port: request.Port}
			if remote, ok := from.RemoteAddr().(*net.TCPAddr); ok {
				origin.OriginHost, origin.OriginPort = remote.IP.String(), uint32(remote.Port)
			}
			return ssh.Marshal(origin)
		})
	})
	return answer, true
}

func key(r listenRequest) string { return net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port))) }

func (c *connection) cancelListen(payload []byte) bool {
	var request listenRequest
	if ssh.Unmarshal(payload, &request) != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	listener, ok := c.listeners[key(request)]
	delete(c.listeners, key(request))
	return ok && listener.Close() == nil
}

// accept offers each connection of a listener to the client, until the listener is closed.
func (c *connection) accept(ctx context.Context, listener net.Listener, kind string, data func(net.Conn) []byte) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause(ctx, acceptPause)
			continue
		}
		select {
		case c.slots <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		c.running.Go(func() {
			defer func() { <-c.slots }()
			channel, requests, err := c.conn.OpenChannel(kind, data(conn))
			if err != nil {
				_ = conn.Close()
				return // the client refuses it
			}
			c.running.Go(func() { ssh.DiscardRequests(requests) })
			join(ctx, channel, conn)
		})
	}
}

// agentFolder begins the names of the folders with sockets of forwarded SSH agents.
const agentFolder = "agent-"

// RemoveSockets removes the sockets of forwarded SSH agents that a killed server has left in its state folder.
func RemoveSockets(stateFolder string) error {
	left, err := filepath.Glob(filepath.Join(stateFolder, agentFolder+"*"))
	for _, folder := range left {
		err = errors.Join(err, os.RemoveAll(folder))
	}
	if err != nil {
		return fmt.Errorf("remove sockets of SSH agents: %w", err)
	}
	return nil
}

// forwardAgent gives the session a socket that reaches the SSH agent of the client.
func (s *session) forwardAgent(ctx context.Context) bool {
	folder, err := os.MkdirTemp(s.server.StateFolder, agentFolder)
	if err != nil {
		s.log.WarnContext(ctx, "forward an SSH agent", logkey.Error(err))
		return false
	}
	remove := func() {
		if err := os.RemoveAll(folder); err != nil {
			s.log.WarnContext(ctx, "remove the socket of an SSH agent", logkey.Error(err))
		}
	}
	path := filepath.Join(folder, "socket")
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		s.log.WarnContext(ctx, "forward an SSH agent", logkey.Error(err))
		remove()
		return false
	}
	s.environ = append(s.environ, "SSH_AUTH_SOCK="+path)
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	s.running.Go(func() {
		defer remove()
		defer stop()
		s.accept(ctx, listener, "auth-agent@openssh.com", func(net.Conn) []byte { return nil })
	})
	return true
}
