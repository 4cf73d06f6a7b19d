package nats

import (
	"strconv"
	"testing"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

func TestFairQueueServesAgentsInTurn(t *testing.T) {
	t.Parallel()
	q := newFairQueue(3)
	for i := range 5 {
		require.Equal(t, i < 3, q.push(1, &natsgo.Msg{Subject: "1-" + strconv.Itoa(i)}), "the queue of an agent is bounded")
	}
	require.True(t, q.push(2, &natsgo.Msg{Subject: "2-0"}), "each agent has its own queue")
	require.True(t, q.push(3, &natsgo.Msg{Subject: "3-0"}))
	require.True(t, q.push(3, &natsgo.Msg{Subject: "3-1"}))
	var order []string
	for len(order) < 6 {
		<-q.ready
		msg, ok := q.pop()
		require.True(t, ok)
		order = append(order, msg.Subject)
	}
	require.Equal(t, []string{"1-0", "2-0", "3-0", "1-1", "3-1", "1-2"}, order)
	_, ok := q.pop()
	require.False(t, ok)
	require.True(t, q.push(1, &natsgo.Msg{Subject: "again"}))
	msg, ok := q.pop()
	require.True(t, ok)
	require.Equal(t, "again", msg.Subject)
}
