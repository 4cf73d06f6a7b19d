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

// programClient asks as programs do: with net/http's client, which has a transport of its own and so one connection. It keeps that, but not on every occasion: when a machine is so busy that an
// answer comes well before it is noticed that the request was sent, it gives the connection up and makes another.
type programClient struct {
	client  http.Client
	request *http.Request
	cancel  context.CancelFunc
}

// client makes a client as programs have it, which connects when it first asks. It asks what the bare one asks.
func (w way) client(ctx context.Context) (asker, error) {
	request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(w.request())))
	if err != nil {
		return nil, fmt.Errorf("make a request to %s: %w", w.name, err)
	}
	request.RequestURI, request.URL.Scheme, request.URL.Host = "", "http", request.Host // TLS, where there is any, is the connection's
	ctx, cancel := context.WithCancel(ctx)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return w.ask(ctx) }}
	return &programClient{client: http.Client{Transport: transport}, request: request.WithContext(ctx), cancel: cancel}, nil
}

func (c *programClient) Close() error {
	c.cancel()
	c.client.CloseIdleConnections()
	return nil
}

func (c *programClient) ask() error {
	response, err := c.client.Do(c.request)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // it was read to its end
	if response.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 500)) // what can be told
		return fmt.Errorf("it was answered: %s: %s", response.Status, said)
	}
	n, err := io.Copy(io.Discard, response.Body)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if n != responseSize {
		return errLength
	}
	return nil
}
