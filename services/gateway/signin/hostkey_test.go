package signin

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"lockstep.internal/services/gateway/access"
	"lockstep.internal/services/gateway/session"
)

func TestOnlyTheOwnerResetsTheHostKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.people.tokens["shared"] = session.Session{UserID: 8, Login: "bob", TokenID: 4}
	table, ok := f.signIn.workspaces.(*access.Table)
	require.True(t, ok)
	table.Set(access.Entry{
		ID: "id", Name: "hello", OwnerID: 7, State: "stopped", Shares: []access.Share{{UserID: 8}},
	})
	b := f.browser()
	reset := func(token, body string) int {
		request := b.Request(http.MethodPost, "https://"+zone.SignIn()+"/cli/reset-host-key", "Authorization", token)
		request.Body = io.NopCloser(strings.NewReader(body))
		response, _ := b.Do(request)
		return response.StatusCode
	}
	const hello = `{"workspace":"hello"}`
	require.Equal(t, http.StatusUnauthorized, reset("", hello))
	require.Equal(t, http.StatusUnauthorized, reset("Basic good", hello))
	require.Equal(t, http.StatusUnauthorized, reset("Bearer another", hello))
	require.Equal(t, http.StatusForbidden, reset("Bearer shared", hello))
	require.Equal(t, http.StatusNotFound, reset("Bearer good", `{"workspace":"other"}`))
	require.Equal(t, http.StatusBadRequest, reset("Bearer good", "hello"))
	require.Empty(t, f.people.forgotten)
	require.Equal(t, http.StatusOK, reset("Bearer good", hello))
	require.Equal(t, []string{"id"}, f.people.forgotten)
}
