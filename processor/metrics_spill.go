package processor

import "github.com/prometheus/client_golang/prometheus"

var (
	descMemory    = desc("state_memory_bytes", "What the states of all tasks take in memory; state.backend.memory-limit is its limit, beside changes that are not committed.")
	descSpilled   = desc("state_spilled_bytes", "State on disk since memory does not hold it.")
	descSpilledN  = desc("state_spilled_keys", "Keys with a value there, those included that are in memory as well.")
	descSpillDisk = desc("state_spill_disk_bytes", "Files of it, with what is superseded, and those from which whole states are read.")
	descLoads     = desc("state_loads", "Keys that were read back from there.")
	descEvicted   = desc("state_evictions", "Keys that went out of memory.")
	descSpillFail = desc("state_spill_failures", "Times that nothing could be written there, so that state stayed in memory above the limit.")

	spillDescs = []*prometheus.Desc{descMemory, descSpilled, descSpilledN, descSpillDisk, descLoads, descEvicted, descSpillFail}
)

// collectSpill gathers where the state is.
func (m *metrics) collectSpill(out chan<- prometheus.Metric) {
	if m.s.spill == nil {
		return
	}
	st := m.s.spill.Stats()
	gauge(out, descMemory, float64(st.MemoryBytes))
	gauge(out, descSpilled, float64(st.Bytes))
	gauge(out, descSpilledN, float64(st.Entries))
	gauge(out, descSpillDisk, float64(st.DiskBytes))
	counter(out, descLoads, float64(st.Loads))
	counter(out, descEvicted, float64(st.Evicted))
	counter(out, descSpillFail, float64(st.Failures))
}
