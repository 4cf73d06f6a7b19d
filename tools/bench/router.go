package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"lockstep.internal/libs/cellmap"
	"lockstep.internal/libs/config"
	"lockstep.internal/libs/natsauth"
	"lockstep.internal/libs/routable"
	"lockstep.internal/services/router"
	"lockstep.internal/tools/stack"
)

// routerRequests measures requests to a cell through the router, beside nginx as a proxy before the same cell.
func routerRequests(ctx context.Context, f *fixture, size Size, measured Measured) {
	cell := f.startStandIn(ctx, standInTarget, targetConfig{Pods: 1}).addresses[targetHTTP]
	ours, token := f.startRouter(ctx, cell)
	nginx, found := f.startNginx(ctx, cell)
	compare := func(name string, measure func(address string) float64) {
		switch {
		case !size.wants(name):
		case found:
			measured[name] = takeTurns(ctx, size.For,
				func(int) float64 { return measure(ours) }, func(int) float64 { return measure(nginx) })
		default:
			measured[name] = Figure{Value: measure(ours), Note: "there is no nginx in PATH"}
		}
	}
	compare("http_c32_rps", func(address string) float64 {
		request := httpRequest(http.MethodGet, "/x", "Private-Token: "+token+"\r\n", nil)
		return callRate(ctx, address, 32, turnOf(size), func(int) caller {
			return connectHTTP(ctx, address, address, http.StatusOK, func() []byte { return request })
		})
	})
	compare("bulk_mb_s", func(address string) float64 {
		return download(ctx, address, httpRequest(http.MethodGet, bulkPath, "Private-Token: "+token+"\r\n", nil),
			turnOf(size))
	})
}

// startRouter starts the router before one cell. It returns its address and a token of the cell.
func (f *fixture) startRouter(ctx context.Context, cell string) (address, token string) {
	_, url, keys := f.accounts(ctx)
	// The service runners of a cell writes its entry.
	key := must(nats.NkeyOptionFromSeed(natsauth.SeedFile(keys, natsauth.PrincipalRunners)))
	inbox := nats.CustomInboxPrefix(natsauth.InboxPrefix(natsauth.PrincipalRunners))
	writer := must(jetstream.New(f.connect(url, key, inbox)))
	must(cellmap.Writer{JetStream: writer}.PutCell(ctx, cellmap.Cell{
		Name: benchCell, URL: "http://" + cell, State: cellmap.Active,
	}))
	cfg := router.DefaultConfig()
	cfg.Ops.Listen, cfg.API.Listen = loopback, loopback
	cfg.Cell.Name = string(benchCell)
	cfg.NATS.URL = config.URL(url)
	cfg.NATS.NKeySeedFile = config.SecretFile(natsauth.SeedFile(keys, natsauth.PrincipalRouter))
	service := f.start(ctx, stack.Router, "--config", f.configuration(stack.Router, &cfg))
	token = must(routable.New(routable.Runner, routable.Payload{Cell: benchCell, Type: 1}))
	return service.addresses[stack.ListenerAPI], token
}

// nginxConfig makes nginx a proxy with kept connections, which writes nothing to files.
const nginxConfig = `
daemon off;
worker_processes auto;
pid %[1]s/nginx.pid;
error_log stderr;
events {
    worker_connections 1024;
}
http {
    access_log off;
    client_body_temp_path %[1]s/body;
    proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi;
    scgi_temp_path %[1]s/scgi;
    keepalive_requests 1000000;
    map $http_upgrade $connection_upgrade {
        default upgrade;
        ''      '';
    }
    upstream cell {
        server %[2]s;
        keepalive 64;
        keepalive_requests 1000000;
    }
    server {
        listen %[3]s;
        location / {
            proxy_pass http://cell;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_max_temp_file_size 0;
        }
    }
}
`

// startNginx starts nginx before a cell and returns its address. found is false without the program.
func (f *fixture) startNginx(ctx context.Context, cell string) (address string, found bool) {
	program, err := exec.LookPath("nginx")
	if errors.Is(err, exec.ErrNotFound) {
		return "", false
	}
	check(err)
	folder := f.file("nginx")
	check(os.MkdirAll(folder, 0o700))
	listener := must(new(net.ListenConfig).Listen(ctx, "tcp", loopback))
	address = listener.Addr().String()
	check(listener.Close())
	file := filepath.Join(folder, "nginx.conf")
	check(os.WriteFile(file, fmt.Appendf(nil, nginxConfig, folder, cell, address), 0o600))
	log := must(os.Create(filepath.Join(folder, "log")))
	cmd := exec.Command(program, "-p", folder, "-c", file) //nolint:gosec,noctx // ended below; a program of this machine
	cmd.Stderr = log
	check(cmd.Start())
	f.onClose(func(context.Context) error {
		_ = cmd.Process.Signal(syscall.SIGTERM) // ends the workers, too
		_ = cmd.Wait()                          // the signal of ctx may have ended it
		return log.Close()
	})
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			check(conn.Close())
			return address, true
		}
		check(interrupted(ctx))
		<-poll.C
	}
}

// download returns how many million bytes a second arrive of a response that does not end.
func download(ctx context.Context, address string, request []byte, turn time.Duration) float64 {
	conn := must(new(net.Dialer).DialContext(ctx, "tcp", address))
	defer conn.Close() //nolint:errcheck // nothing follows
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	must(conn.Write(request))
	// Closing the body would read all of it, and it does not end. The connection is closed instead.
	response := must(http.ReadResponse(bufio.NewReaderSize(conn, blockSize), nil)) //nolint:bodyclose // see above
	if response.StatusCode != http.StatusOK {
		check(fmt.Errorf("download from %s: %s", address, response.Status))
	}
	m := newMeter(turn)
	for buffer, goesOn := make([]byte, blockSize), true; goesOn; {
		n, err := response.Body.Read(buffer)
		check(interrupted(ctx))
		check(err)
		now := time.Now()
		goesOn = m.add(n, now, now)
	}
	return m.rate() / 1e6
}
