package natsconn

import "github.com/prometheus/client_golang/prometheus"

// Collector returns the metrics of the connection, to be registered once.
func (c *Conn) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("lockstep_nats_"+name, help, labels, nil)
	}
	return &collector{
		conn:       c,
		connected:  desc("connected", "1 while connected to NATS, else 0."),
		reconnects: desc("reconnects_total", "Reconnects to NATS."),
		messages:   desc("messages_total", "Messages received (in) and sent (out).", "direction"),
		bytes:      desc("bytes_total", "Bytes of messages received (in) and sent (out).", "direction"),
		denied:     desc("permission_violations_total", "Permission violations reported by NATS, by operation.", "operation"),
		slow:       desc("slow_consumer_total", "Slow consumer errors; each one lost messages."),
		errors:     desc("errors_total", "Other errors that belong to no request, such as headers that cannot be decoded."),
	}
}

type collector struct {
	conn                                                         *Conn
	connected, reconnects, messages, bytes, denied, slow, errors *prometheus.Desc
}

func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.connected, c.reconnects, c.messages, c.bytes, c.denied, c.slow, c.errors} {
		descs <- desc
	}
}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	connected := 0.0
	if c.conn.IsConnected() {
		connected = 1
	}
	metrics <- prometheus.MustNewConstMetric(c.connected, prometheus.GaugeValue, connected)
	stats := c.conn.Stats()
	counter(c.reconnects, stats.Reconnects)
	counter(c.messages, stats.InMsgs, "in")
	counter(c.messages, stats.OutMsgs, "out")
	counter(c.bytes, stats.InBytes, "in")
	counter(c.bytes, stats.OutBytes, "out")
	denied := c.conn.violations.totals()
	for _, operation := range []string{"publish", "subscription", ""} {
		counter(c.denied, denied[operation], operation)
	}
	c.conn.mu.Lock()
	slow, errors := c.conn.slow, c.conn.errors
	c.conn.mu.Unlock()
	counter(c.slow, slow)
	counter(c.errors, errors)
}
