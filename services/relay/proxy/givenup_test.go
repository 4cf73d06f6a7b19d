package proxy_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/directory"
)

func TestWhoMayNoLongerIsToldSo(t *testing.T) {
	t.Parallel()
	revoke := func(p *people) { p.users[developer] = directory.User{ID: developer, Blocked: true} }
	t.Run("while the answer is awaited", func(t *testing.T) {
		t.Parallel()
		h := newHolding("")
		f := stand(t, setup(t, h))
		c := f.call().taken("/free")
		c.say(plain("/held"))
		<-h.asked
		f.people.change(func() { revoke(f.people) })
		response, body := c.hear()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		require.True(t, response.Close)
		require.Equal(t, "/held", <-h.gone)
		require.Empty(t, c.over())
		require.Contains(t, f.last().Error, "permission_denied")
	})
	t.Run("while it comes", func(t *testing.T) {
		t.Parallel()
		h := newHolding("begun")
		f := stand(t, setup(t, h))
		c := f.call().taken("/free")
		c.say(plain("/held"))
		<-h.asked
		response, err := http.ReadResponse(c.r, nil)
		require.NoError(t, err)
		f.people.change(func() { revoke(f.people) })
		_, err = io.ReadAll(response.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "it does not look complete")
		require.Equal(t, "/held", <-h.gone)
		require.Contains(t, f.last().Error, "permission_denied")
	})
	t.Run("between requests", func(t *testing.T) {
		t.Parallel()
		f := stand(t, setup(t, http.HandlerFunc(echo)))
		c := f.call().taken("/free")
		token := f.token(developer)
		f.people.change(func() { revoke(f.people) })
		c.say(strings.ReplaceAll(plain("/free"), "{token}", token))
		response, body := c.hear()
		require.Equal(t, http.StatusForbidden, response.StatusCode, body)
		f.people.change(func() { f.people.users[developer] = directory.User{ID: developer} })
		require.Contains(t, c.get("/again"), "/again", "the connection is as good as before")
		require.Len(t, f.publish(), 2, "who is not known any more has no record")
	})
}

// A connection may carry the requests of many: what ends one of them does not end the next.
func TestWhoMayNoLongerDoesNotHinderWhoComesNext(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	looks, look, looksAgain := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, again sync.Once
	c.say(plain("/held"))
	<-h.asked
	f.people.change(func() {
		f.people.users[developer] = directory.User{ID: developer, Blocked: true}
		f.people.asked = func(id int64) {
			if id == developer {
				once.Do(func() {
					close(looks)
					<-look
				})
			}
		}
	})
	<-looks
	h.let <- struct{}{}
	_, body := c.hear()
	require.Equal(t, "let", body)
	c.say(strings.ReplaceAll(plain("/next"), "{token}", f.token(admin)))
	<-h.asked
	f.people.change(func() {
		f.people.asked = func(id int64) {
			if id == admin {
				again.Do(func() { close(looksAgain) })
			}
		}
	})
	close(look)
	<-looksAgain
	h.let <- struct{}{}
	response, body := c.hear()
	require.Equal(t, http.StatusOK, response.StatusCode, body)
	require.Equal(t, "let", body)
}

func TestADrainEndsConnectionsThatRest(t *testing.T) {
	t.Parallel()
	h, flowing := newHolding(""), newHolding("begun")
	f := stand(t, setup(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/flowing") {
			flowing.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})))
	resting, awaiting, hearing, late := f.call().taken("/free"), f.call(), f.call(), f.call()
	awaiting.say(plain("/held"))
	<-h.asked
	hearing.say(plain("/flowing"))
	<-flowing.asked
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		f.handler.Drain(t.Context())
	}()
	require.Empty(t, resting.over(), "it ends at once")
	late.say(plain("/free/late"))
	_, said := late.hear()
	require.Equal(t, "GET /free/late  http", said, "what has come is answered")
	require.Equal(t, 2, f.handler.Directs(), "by the server, which waits for it")
	select {
	case <-drained:
		require.Fail(t, "two are under way")
	default:
	}
	close(h.let)
	response, body := awaiting.hear()
	require.Equal(t, "let", body)
	require.True(t, response.Close)
	require.Empty(t, awaiting.over())
	close(flowing.let)
	_, body = hearing.hear()
	require.Equal(t, "begunlet", body)
	require.Empty(t, hearing.over())
	<-drained
	f.gone()
}

func TestADrainThatIsOverCutsWhatIsLeft(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	c.say(plain("/held"))
	<-h.asked
	finish, cut := context.WithCancel(t.Context())
	cut()
	f.handler.Drain(finish)
	<-h.gone
	f.gone()
	_, _ = io.ReadAll(c.r)
	require.Contains(t, f.last().Error, "drained")
}

func TestTheLimitsAreThoseOfAll(t *testing.T) {
	t.Parallel()
	h := newHolding("")
	f := stand(t, setup(t, h))
	c := f.call().taken("/free")
	others := make([]*caller, 3)
	for i := range others {
		others[i] = f.call()
		others[i].say(plain("/held"))
		<-h.asked
	}
	c.say(plain("/free"))
	response, _ := c.hear()
	require.Equal(t, http.StatusTooManyRequests, response.StatusCode)
	require.Equal(t, 3, f.handler.Requests())
	close(h.let)
	for _, other := range others {
		_, body := other.hear()
		require.Equal(t, "let", body)
	}
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
	require.Contains(t, c.get("/free/again"), "again")
}

func TestWhatCannotBeRecordedWaits(t *testing.T) {
	t.Parallel()
	f := stand(t, setup(t, http.HandlerFunc(echo)), func(s *stance) { s.room = 2 })
	c := f.call().taken("/1")
	_ = c.get("/2")
	require.Eventually(t, func() bool { return f.handler.Requests() == 0 }, soon, time.Millisecond)
	c.say(plain("/3"))
	require.Eventually(t, func() bool { return f.handler.Requests() == 1 && f.handler.Directs() == 0 }, soon, time.Millisecond)
	f.flush()
	_, body := c.hear()
	require.Contains(t, body, "/3")
	require.Contains(t, c.get("/4"), "/4")
}

func TestAnAgentThatIsNotThereYetIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, http.HandlerFunc(echo))
	b.absent = make(chan struct{})
	f := stand(t, b)
	f.handler.Hurry(hasty, soon)
	waits, leaves := f.call(), f.call()
	waits.say(plain("/waits"))
	leaves.say(plain("/leaves"))
	require.Eventually(t, func() bool { return f.handler.Directs() == 2 && f.handler.Requests() == 2 }, soon, time.Millisecond)
	require.NoError(t, leaves.conn.Close())
	require.Eventually(t, func() bool { return f.handler.Directs() == 1 && f.handler.Requests() == 1 }, soon, time.Millisecond)
	close(b.absent)
	_, body := waits.hear()
	require.Contains(t, body, "/waits")
	all := f.publish()
	require.Len(t, all, 2)
	require.Contains(t, all[0].Error, "the caller has gone")
	require.EqualValues(t, 1, b.opened.Load())
}
