package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// programClient asks as programs do: with net/http's client, whose transport has one connection.
type programClient struct {
	net.Conn

	client  http.Client
	request *http.Request
}

// client connects a client as programs have it. It asks what the bare one asks, and fails when its connection is not kept, since what it would measure then is connecting.
func (w way) client(ctx context.Context) (asker, error) {
	request, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(w.request())))
	if err != nil {
		return nil, fmt.Errorf("make a request to %s: %w", w.name, err)
	}
	request.RequestURI, request.URL.Scheme, request.URL.Host = "", "http", request.Host // TLS, where there is any, is the connection's
	conn, err := w.ask(ctx)
	if err != nil {
		return nil, err
	}
	only := make(chan net.Conn, 1)
	only <- conn
	return &programClient{
		Conn: conn, request: request.WithContext(ctx),
		client: http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case conn := <-only:
				return conn, nil
			default:
				return nil, errors.New("the connection was not kept")
			}
		}}},
	}, nil
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
