package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
)

// webSocketPath is where the target echoes messages.
const webSocketPath = "/ws"

// messageSize is the size of a message, short enough for a header of two bytes.
const messageSize = 64

// webSocketCall is a caller that sends a message of a WebSocket and reads its echo. It uses little of the processor.
type webSocketCall struct {
	net.Conn

	reader   *bufio.Reader
	message  []byte
	received []byte
	want     []byte
}

// webSocket connects to the target through a proxy.
func (g *gatewayFixture) webSocket(ctx context.Context, address string) *webSocketCall {
	conn := must(new(net.Dialer).DialContext(ctx, "tcp", address))
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	must(conn.Write(g.request(webSocketPath, "Origin: https://"+g.host()+"\r\nConnection: Upgrade\r\n"+
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n")))
	c := &webSocketCall{Conn: conn, reader: bufio.NewReader(conn)}
	response := must(http.ReadResponse(c.reader, nil)) //nolint:bodyclose // the connection is used further
	if response.StatusCode != http.StatusSwitchingProtocols {
		check(fmt.Errorf("WebSocket through %s: %s", address, response.Status))
	}
	// Frames of RFC 6455: a binary message in one frame. A mask of zeros changes nothing.
	payload := noise(messageSize)
	c.message = append([]byte{0x82, 0x80 | messageSize, 0, 0, 0, 0}, payload...)
	c.want = append([]byte{0x82, messageSize}, payload...)
	c.received = make([]byte, len(c.want))
	return c
}

func (c *webSocketCall) call() error {
	if _, err := c.Write(c.message); err != nil {
		return fmt.Errorf("send a message: %w", err)
	}
	if _, err := io.ReadFull(c.reader, c.received); err != nil {
		return fmt.Errorf("read the echo: %w", err)
	}
	if !bytes.Equal(c.received, c.want) {
		return fmt.Errorf("the echo is another message: %x", c.received)
	}
	return nil
}
