package service

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// opsHandler serves /livez, /readyz and /metrics.
func opsHandler(h *health, metrics *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		write(w, "text/plain; charset=utf-8", http.StatusOK, []byte("alive\n"))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		report, status := h.report(), http.StatusOK
		if !report.Ready {
			status = http.StatusServiceUnavailable
		}
		if r.URL.Query().Get("format") != "json" && !strings.Contains(r.Header.Get("Accept"), "application/json") {
			write(w, "text/plain; charset=utf-8", status, []byte(report.Text()))
			return
		}
		raw, err := json.Marshal(report)
		if err != nil {
			status = http.StatusInternalServerError
		}
		write(w, "application/json", status, append(raw, '\n'))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Registry: metrics}))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		write(w, "text/plain; charset=utf-8", http.StatusOK, []byte("/livez\n/readyz\n/readyz?format=json\n/metrics\n"))
	})
	return mux
}

func write(w http.ResponseWriter, contentType string, status int, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // fails when the client has disconnected
}
