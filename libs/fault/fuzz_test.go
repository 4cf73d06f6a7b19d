package fault_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"lockstep.internal/libs/fault"
	"lockstep.internal/schemas/gen/errcode"
)

// FuzzRoundTrip checks that a fault is unchanged over HTTP and Connect.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(3), "workspace %s is unavailable", "workspace", "ä\x00")
	f.Add(uint8(0), "\xff\xfe", "\xff", "\xff")
	f.Add(uint8(8), "", "", "")
	codes := errcode.All()
	f.Fuzz(func(t *testing.T, n uint8, text, key, value string) {
		made := fault.New(codes[int(n)%len(codes)].Code, "%s", text)
		if key != "" {
			made = made.With(key, value)
		}
		public := fault.Public(t.Context(), slog.New(slog.DiscardHandler), made)
		require.True(t, utf8.ValidString(public.Message))
		require.True(t, strings.HasPrefix(public.Message, strings.ToValidUTF8(text, "\uFFFD")))

		rpc := fault.From(fault.ToConnect(public))
		require.Equal(t, public.Code, rpc.Code)
		require.Equal(t, public.Message, rpc.Message)
		require.Equal(t, public.Details, rpc.Details)

		recorder := httptest.NewRecorder()
		fault.WriteHTTP(
			recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody),
			slog.New(slog.DiscardHandler), public,
		)
		require.Equal(t, public, fault.FromHTTP(recorder.Result()))
	})
}
