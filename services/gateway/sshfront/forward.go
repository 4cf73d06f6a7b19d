package sshfront

import (
	"context"
	"errors"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"
)

// forwardRequests passes requests of one connection on to the other, with their answers.
func forwardRequests(to ssh.Conn, requests <-chan *ssh.Request) {
	for request := range requests {
		ok, answer, err := to.SendRequest(request.Type, request.WantReply, request.Payload)
		if request.WantReply {
			_ = request.Reply(err == nil && ok, answer) // the client may have left
		}
	}
}

// counter receives numbers of bytes.
type counter func(bytes int)

// forwardChannels opens each channel of one connection on the other, but those that own takes. It counts the bytes
// there and back. It returns when the connection has ended.
func (c *client) forwardChannels(
	ctx context.Context, to ssh.Conn, channels <-chan ssh.NewChannel, own func(context.Context, ssh.NewChannel) bool,
	there, back counter,
) {
	for channel := range channels {
		if own != nil && own(ctx, channel) {
			continue
		}
		if !c.take() {
			_ = channel.Reject(ssh.ResourceShortage, "too many open sessions and forwarded connections")
			continue
		}
		c.running.Go(func() {
			defer c.release()
			forwardChannel(to, channel, there, back)
		})
	}
}

func forwardChannel(to ssh.Conn, offered ssh.NewChannel, there, back counter) {
	far, farRequests, err := to.OpenChannel(offered.ChannelType(), offered.ExtraData())
	if err != nil {
		reason, text := ssh.ConnectionFailed, "the other side has left"
		if refused, ok := errors.AsType[*ssh.OpenChannelError](err); ok {
			reason, text = refused.Reason, refused.Message
		}
		_ = offered.Reject(reason, text) // the client may have left
		return
	}
	near, nearRequests, err := offered.Accept()
	if err != nil {
		_ = far.Close()
		return // the client has left
	}
	person, agent := &side{Channel: near}, &side{Channel: far}
	var both sync.WaitGroup
	both.Go(func() { oneWay(agent, person, nearRequests, there) })
	both.Go(func() { oneWay(person, agent, farRequests, back) })
	both.Wait()
}

// side is the channel of one side. Its requests come in one direction, and the other direction closes it.
type side struct {
	ssh.Channel

	// answering is held from a request of this side to its answer, and to close the channel: without it, a program that
	// ends at once would close the channel before the client has the answer to its request.
	answering sync.Mutex
}

// answer passes a request of this side on to the other, and its answer back.
func (s *side) answer(to *side, request *ssh.Request) {
	s.answering.Lock()
	defer s.answering.Unlock()
	ok, err := to.SendRequest(request.Type, request.WantReply, request.Payload) // ends with the channel
	if request.WantReply {
		_ = request.Reply(err == nil && ok, nil) // the side may have left
	}
}

// end closes the channel when its last request has been answered.
func (s *side) end() {
	s.answering.Lock()
	defer s.answering.Unlock()
	_ = s.Close() // the side may have left
}

// counted is a reader whose bytes are counted.
type counted struct {
	io.Reader

	count counter
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.count(n)
	}
	return n, err //nolint:wrapcheck // the reader's own
}

// oneWay passes data, errors and requests on from one channel to another, and then its end: a channel is closed when
// everything that came before has been passed on, the exit status above all.
func oneWay(to, from *side, requests <-chan *ssh.Request, count counter) {
	var streams sync.WaitGroup
	streams.Go(func() {
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(to, counted{from, count}) }) // ends with the channel
		both.Go(func() { _, _ = io.Copy(to.Stderr(), from.Stderr()) })
		both.Wait()
		_ = to.CloseWrite()
	})
	for request := range requests {
		if startsProgram(request.Type) {
			count(len(request.Payload))
		}
		from.answer(to, request)
	}
	streams.Wait()
	to.end()
}

// startsProgram reports whether a request of a session starts a program.
func startsProgram(kind string) bool { return kind == "shell" || kind == "exec" || kind == "subsystem" }
